"""StepResNet in any setting, and what does not depend on its host."""

from functools import partial

import pytest
import torch
import torch.nn as nn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmstepnet import models
from mmstepnet.attentions import IEBN
from tests.utils import perturb, run, same

StepResNet = partial(models.StepResNet, host='mmpretrain')


@settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=list(HealthCheck),
)
@given(
    depth=st.sampled_from([18, 50]),
    preact=st.booleans(),
    attention=st.sampled_from([None, 'StepNet', 'SE', 'CBAM', 'FCA', 'SGE']),
    first_block=st.sampled_from([None, True, False]),
    frozen=st.integers(-1, 3),
    out_indices=st.lists(st.integers(0, 3), min_size=1, unique=True).map(
        sorted
    ),
    norm_eval=st.booleans(),
    drop_path_rate=st.sampled_from([0.0, 0.2]),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    batch=st.integers(2, 3),
)
def test_any_setting_and_image(
    attention, frozen, out_indices, size, batch, first_block, **kwargs
):
    """Each trains, and checkpointing of activations changes nothing."""
    pair = [
        StepResNet(
            attention=attention and dict(type=attention),
            frozen_stages=frozen,
            first_block=first_block,
            out_indices=out_indices,
            with_cp=with_cp,
            stem_channels=8,
            base_channels=4,
            **kwargs,
        )
        for with_cp in (False, True)
    ]
    pair[1].load_state_dict(perturb(pair[0]).state_dict())
    x, results = torch.randn(batch, 3, *size).double(), []
    for model in pair:
        torch.manual_seed(0)
        results.append(run(model.double().train(), x))
    carried = first_block or first_block is None and attention != 'StepNet'
    for _, block in pair[0].residual_blocks():
        assert (block.step.attention is not None) == bool(
            attention and (carried or block.downsample is None)
        )
    same(*results)
    outs, grads, _ = results[0]
    for index, out in zip(out_indices, outs.values(), strict=True):
        stride = 2 ** (index + 2)
        assert out.shape[0] == batch
        assert out.shape[2:] == tuple(-(-side // stride) for side in size)
        assert out.isfinite().all()
    assert all(
        grad is None or grad.isfinite().all() for grad in grads.values()
    )


def test_projections_keep_a_bn_where_iebn_is_the_norm():
    """``init_step`` is of IEBN alone."""
    norm = dict(type='mmstepnet.IEBN', init_step=1.0)
    model = StepResNet(18, norm_cfg=norm, base_channels=4, stem_channels=8)
    for _, block in model.residual_blocks():
        assert type(block.bn2) is IEBN
        if block.downsample is not None:
            assert type(block.downsample[-1]) is nn.BatchNorm2d


def test_preactivation_against_a_written_out_network():
    """One bottleneck stage, evaluated line by line."""
    model = perturb(StepResNet(50, attention=None, preact=True))
    model.double().eval()

    def bn(norm, x):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        return (x - norm.running_mean[:, None, None]) * scale[
            :, None, None
        ] + norm.bias[:, None, None]

    x = torch.randn(2, 3, 64, 64).double()
    y = model.maxpool(model.conv1(x))
    for _, block in model.residual_blocks():
        a = bn(block.norm1, y).relu()
        shortcut = y if block.downsample is None else block.downsample(a)
        b = bn(block.norm2, block.conv1(a)).relu()
        y = shortcut + block.conv3(bn(block.norm3, block.conv2(b)).relu())
    expected = bn(model.bn_last, y).relu()
    same(model(x)[0], expected)
    assert isinstance(model.bn1, nn.Identity)
    assert all(
        len(b.downsample) == 1
        for _, b in model.residual_blocks()
        if b.downsample is not None
    )


@pytest.mark.parametrize(
    'options',
    [
        dict(depth=18, preact=True),
        dict(depth=50, norm_cfg=dict(type='mmstepnet.IEBN')),
    ],
)
def test_new_norms_of_frozen_stages_are_frozen(options):
    """DDP waits for what can be trained when it is built, before train()."""
    model = StepResNet(attention=None, frozen_stages=1, **options)
    built = [p.requires_grad for p in model.parameters()]
    model.train()
    assert built == [p.requires_grad for p in model.parameters()]
    assert len({*built}) == 2
