"""Any setting of the ResNets, on pictures of any size."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmstepnet.models import StepResNet

NARROW = dict(stem_channels=8, base_channels=4)


@settings(deadline=None, derandomize=True, database=None, max_examples=40,
          suppress_health_check=list(HealthCheck))
@given(
    depth=st.sampled_from([18, 50]),
    preact=st.booleans(),
    attention=st.sampled_from([None, 'StepNet', 'SE', 'CBAM', 'FCA', 'SGE']),
    first_block=st.sampled_from([None, True, False]),
    frozen=st.integers(-1, 4),
    out_indices=st.lists(st.integers(0, 3), min_size=1, unique=True).map(
        sorted),
    with_cp=st.booleans(), norm_eval=st.booleans(),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    batch=st.integers(2, 3))
def test_any_setting_and_image(depth, preact, attention, first_block, frozen,
                               out_indices, with_cp, norm_eval, size, batch):
    """Every combination trains on images of any size."""
    model = StepResNet(
        depth, preact=preact, attention=attention and dict(type=attention),
        first_block=first_block, frozen_stages=frozen, host='mmpretrain',
        out_indices=out_indices, with_cp=with_cp, norm_eval=norm_eval,
        **NARROW).train()
    outs = model(torch.randn(batch, 3, *size))
    assert len(outs) == len(out_indices)
    for index, out in zip(out_indices, outs):
        stride = 2**(index + 2)
        assert out.shape[0] == batch
        assert out.shape[2:] == tuple(-(-side // stride) for side in size)
        assert out.isfinite().all()
    if outs[-1].requires_grad:
        sum(out.sum() for out in outs).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters()
                   if p.grad is not None)
