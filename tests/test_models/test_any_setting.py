"""Any setting of the ResNets, on pictures of any size."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmstepnet.models import StepResNet
from tests.utils import perturb, run


@settings(deadline=None, derandomize=True, database=None, max_examples=25,
          suppress_health_check=list(HealthCheck))
@given(
    depth=st.sampled_from([18, 50]), preact=st.booleans(),
    attention=st.sampled_from([None, 'StepNet', 'SE', 'CBAM', 'FCA', 'SGE']),
    first_block=st.sampled_from([None, True, False]),
    frozen=st.integers(-1, 3),
    out_indices=st.lists(st.integers(0, 3), min_size=1, unique=True).map(
        sorted),
    norm_eval=st.booleans(), drop_path_rate=st.sampled_from([0., 0.2]),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    batch=st.integers(2, 3))
def test_any_setting_and_image(attention, frozen, out_indices, size, batch,
                               **kwargs):
    """Each trains, and checkpointing of activations changes nothing."""
    pair = [StepResNet(
        attention=attention and dict(type=attention), frozen_stages=frozen,
        host='mmpretrain', out_indices=out_indices, with_cp=with_cp,
        stem_channels=8, base_channels=4, **kwargs)
        for with_cp in (False, True)]
    pair[1].load_state_dict(perturb(pair[0]).state_dict())
    x, results = torch.randn(batch, 3, *size), []
    for model in pair:
        torch.manual_seed(0)
        results.append(run(model.train(), x))
    for got, expected in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    outs, grads, _ = results[0]
    for index, out in zip(out_indices, outs.values(), strict=True):
        stride = 2**(index + 2)
        assert out.shape[0] == batch
        assert out.shape[2:] == tuple(-(-side // stride) for side in size)
        assert out.isfinite().all()
    assert all(grad is None or grad.isfinite().all()
               for grad in grads.values())
