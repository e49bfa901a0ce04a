"""A step at a branch's end, by hand, gives what the reference path gives."""

import gc

import pytest
import torch
import torch.nn as nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.stateless import _reparametrize_module

from mmstepnet import insert_steps, steps
from mmstepnet.attentions import SE, LayerScale, Plain, StepNet
from mmstepnet.attentions.base import normalise
from mmstepnet.steps.branch import BranchStep
from mmstepnet.steps.tail import dispatch
from tests.families import find_family
from tests.test_steps.cases import (
    ARRANGEMENTS,
    GATES,
    Arrangement,
    branch_inputs,
    build_branch,
    by_numpy,
    run_branch,
    worst,
)
from tests.utils import TORCH_21, perturb_gates, same, steps_of

TOKENS = ARRANGEMENTS['tokens']


@pytest.mark.parametrize(
    'arrangement', ARRANGEMENTS.values(), ids=ARRANGEMENTS
)
@pytest.mark.parametrize('gate', GATES)
def test_equals_the_reference_path_in_float64(gate, arrangement, scalings):
    """Result, gradients and statistics; observers are told the same."""
    step, args = build_branch(arrangement, gate), branch_inputs(arrangement)
    told = {True: [], False: []}
    found, wanted = (
        run_branch(fused, step, *args, observer=told[fused].append)
        for fused in told
    )
    error, name = worst(found, wanted)
    assert error < 1e-10, name
    assert found['out'].stride() == args[1].stride()
    ((_, *values),), ((_, *others),) = told.values()
    same(values, others)
    assert len(scalings) == 1


@pytest.mark.parametrize(
    'arrangement', ARRANGEMENTS.values(), ids=ARRANGEMENTS
)
def test_is_the_equation(arrangement, scalings):
    step = build_branch(arrangement, 'running')
    x, f, _ = branch_inputs(arrangement)
    same(step(x, f), by_numpy(arrangement, step, x, f))
    assert scalings


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('x_dtype', [None, torch.float32])
@pytest.mark.parametrize(
    'name',
    ['tokens', 'maps', 'many places', 'tokens, images inside, beside others'],
)
@pytest.mark.parametrize('gate', ['batch', 'running', 'folded'])
def test_half_precision(gate, name, x_dtype, dtype, scalings):
    """Under autocast x is float32 and f is not. Sums are float32."""
    if TORCH_21 and dtype == torch.float16:
        pytest.skip('this BN takes no float16 on a CPU')
    arrangement = ARRANGEMENTS[name]
    step = build_branch(arrangement, gate).float()
    args = branch_inputs(arrangement, dtype, x_dtype)
    exact = run_branch(False, step, *args, torch.float64)
    found = run_branch(True, step, *args)
    assert found['out'].dtype == found['f'].dtype == dtype
    assert found['x'].dtype == args[0].dtype
    limits = {
        name: torch.finfo(value.dtype).eps
        * (1 if name in ('out', 'f') else 100)
        for name, value in found.items()
        if value.is_floating_point()
    }
    for name, limit in limits.items():
        error = (found[name].double() - exact[name]).norm()
        assert error <= limit * exact[name].norm().clamp(min=1e-12), name
    assert scalings


def test_sums_are_not_rounded_to_half_precision(scalings):
    """4,096 ones and a 256: of bfloat16 the sum would be 4,096 or 4,352."""
    arrangement = Arrangement((2, 4097, 3), 0, 2)
    step = build_branch(arrangement, 'running').float()
    f = torch.ones(arrangement.shape, dtype=torch.bfloat16)
    f[:, 0] = 3
    args = f.float(), f, torch.ones_like(f)
    found = run_branch(True, step, *args)
    exact = run_branch(False, step, *args, torch.float64)
    for name in 'attention.ie_bias', 'attention.pair_weight':
        torch.testing.assert_close(
            found[name].double(), exact[name], rtol=1e-5, atol=0
        )
    assert scalings


@pytest.mark.parametrize('name', ['tokens', 'maps', 'volumes', 'vectors'])
@pytest.mark.parametrize('gate', GATES)
def test_derivatives_of_both_orders(name, gate, scalings):
    arrangement = ARRANGEMENTS[name]
    arrangement = arrangement._replace(
        shape=tuple(min(3, size) for size in arrangement.shape)
    )
    step = build_branch(arrangement, gate)
    names = [name for name, _ in step.named_parameters()]

    def function(x, f, *parameters):
        with _reparametrize_module(step, dict(zip(names, parameters))):
            return step(x, f)

    args = [t.requires_grad_() for t in branch_inputs(arrangement)[:2]]
    args += list(step.parameters())
    assert gradcheck(
        function, args, fast_mode=False, check_batched_grad=not TORCH_21
    )
    assert gradgradcheck(function, args, fast_mode=True)
    assert scalings


def test_third_derivatives(scalings):
    """Of x alone: they go from X to x more than once."""
    arrangement = Arrangement((3, 2, 2), 0, 2)
    step = build_branch(arrangement, 'running')
    x, f, _ = branch_inputs(arrangement)
    found = []
    for fused in True, False:
        x.requires_grad_()
        with steps.fused(fused):
            value = step(x, f).square().sum()
        for _ in range(3):
            (value,) = torch.autograd.grad(
                value.square().sum(), x, create_graph=True
            )
        found.append(value)
    same(*found)
    assert len(scalings) == 1


def test_transforms_take_the_reference_path(scalings):
    step = build_branch(TOKENS, 'running')
    x, f, grad = branch_inputs(TOKENS)

    def take(x):
        return step(x, f)

    _, tangent = torch.func.jvp(take, (x,), (grad,))
    found = torch.func.grad(lambda x: take(x).sum())(x)
    many = torch.func.vmap(take)(x[None])
    assert not scalings
    x.requires_grad_()
    out = take(x)
    out.sum().backward()
    same((many[0], found), (out, x.grad))
    assert tangent.abs().sum() > 0


def with_gate(change):
    def changed(step):
        change(step.attention)
        return step

    return changed


def other_gate(gate):
    def changed(step):
        step.attention = gate
        return step

    return changed


OTHERS = {
    'SE': other_gate(SE(6)),
    'LayerScale': other_gate(LayerScale(6)),
    'Plain': other_gate(Plain(6)),
    'inputs x': other_gate(StepNet(6, inputs='x')),
    'inputs difference': other_gate(StepNet(6, inputs='difference')),
    'IEBN as cited': other_gate(StepNet(6, iebn='cited')),
    'LayerNorm in the gate': with_gate(
        lambda gate: setattr(gate, 'bn', nn.LayerNorm(6))
    ),
    'a hooked gate': with_gate(
        lambda gate: gate.register_forward_hook(lambda *args: None)
    ),
    'a hooked norm': with_gate(
        lambda gate: gate.bn.register_forward_pre_hook(lambda *args: None)
    ),
}


@pytest.mark.parametrize('change', OTHERS.values(), ids=OTHERS)
def test_other_gates(change, scalings):
    step = change(build_branch(TOKENS, 'batch')).double()
    step(*branch_inputs(TOKENS)[:2])
    assert not scalings


def strided(t):
    """Values with gaps between them."""
    return torch.stack((t, t), -1)[..., 0]


def channels_first(t):
    return t.permute(2, 0, 1).contiguous().permute(1, 2, 0)


OTHER_MAPS = {
    'gaps in x': lambda x, f: (strided(x), f),
    'gaps in f': lambda x, f: (x, strided(f)),
    'channels outside': lambda x, f: (x, channels_first(f)),
    'one state for all images': lambda x, f: (x[:1].expand_as(f), f),
    'a state that broadcasts': lambda x, f: (x[:1], f),
    'no images': lambda x, f: (x[:0], f[:0]),
    'float64 beside float32': lambda x, f: (x, f.float()),
}


@pytest.mark.parametrize('change', OTHER_MAPS.values(), ids=OTHER_MAPS)
def test_other_maps(change, scalings):
    step = build_branch(TOKENS, 'running')
    x, f = change(*branch_inputs(TOKENS)[:2])
    step(x, f)
    assert not scalings


def test_small_maps_on_a_cpu(scalings, monkeypatch):
    monkeypatch.setattr(dispatch, 'FEWEST_VALUES', 5 * 7 * 6 + 1)
    step = build_branch(TOKENS, 'batch')
    step(*branch_inputs(TOKENS)[:2])
    assert not scalings


def test_errors_are_those_of_the_reference_path():
    step, (x, f, _) = build_branch(TOKENS, 'batch'), branch_inputs(TOKENS)
    with pytest.raises(ValueError, match='at least 2 images'):
        step(x[:1], f[:1])
    with pytest.raises(RuntimeError):
        step(x[..., :3], f[..., :3])


def test_gradients_in_any_form(scalings):
    """Of another order in memory, or one number for all."""
    arrangement = ARRANGEMENTS['maps']
    step = build_branch(arrangement, 'batch')
    x, f, grad = branch_inputs(arrangement)
    for given in (
        grad.contiguous(memory_format=torch.channels_last),
        grad.sum().expand(f.shape),
        strided(grad),
    ):
        error, name = worst(
            *(run_branch(fused, step, x, f, given) for fused in (True, False))
        )
        assert error < 1e-10, name
    assert len(scalings) == 3


@pytest.mark.parametrize('change', ['state', 'branch', 'result'])
def test_what_the_block_changes_in_place(change, scalings):
    """x and the result are nobody's but the block's; f is needed."""
    step = build_branch(TOKENS, 'batch')
    leaves = [t.requires_grad_() for t in branch_inputs(TOKENS)[:2]]
    with steps.fused(False):
        wanted = torch.autograd.grad(step(*leaves).sum(), leaves)
    x, f = (t * 1 for t in leaves)
    out = step(x, f)
    dict(state=x, branch=f, result=out)[change].add_(1)
    if change == 'branch':
        with pytest.raises(RuntimeError, match='modified by an inplace'):
            out.sum().backward()
    else:
        out.sum().backward()
        same([t.grad for t in leaves], list(wanted))
    assert scalings


def test_batch_statistics_that_are_not_finite_leave_no_trace(scalings):
    """As where a GradScaler skips a batch."""
    step = build_branch(TOKENS, 'batch')
    x, f, _ = branch_inputs(TOKENS)
    f[0, :, 0] = torch.inf
    bn = step.attention.bn
    before = [t.clone() for t in (bn.running_mean, bn.running_var)]
    z = torch.zeros(5, 6).double()
    z[0, 0] = torch.inf
    step(x, f)
    for now, was in zip((bn.running_mean, bn.running_var), before):
        assert now.isfinite().all()
        assert torch.equal(now[:1], was[:1])
        assert not torch.equal(now[1:], was[1:])
    normalise(step.attention, bn, z)  # which the reference path calls
    assert bn.running_var.isfinite().all() and bn.num_batches_tracked == 2
    assert len(scalings) == 1


@pytest.mark.parametrize('x_dtype', [torch.float32, torch.bfloat16])
def test_memory_for_the_backward(x_dtype, scalings):
    """f and vectors; x is not kept."""
    arrangement = Arrangement((4, 100, 8), 0, 2)
    step = build_branch(arrangement, 'batch').float()
    x, f, _ = branch_inputs(arrangement, torch.bfloat16, x_dtype)
    own = {t.data_ptr() for t in (*step.parameters(), *step.buffers(), f)}
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        step(x.requires_grad_(), f.requires_grad_())
    assert f.data_ptr() in kept
    others = [t for key, t in kept.items() if key not in own]
    assert sum(t.numel() for t in others) <= 10 * 4 * 8
    assert scalings


def test_a_step_is_freed_after_the_backward(scalings):
    """At once, without Python's collector."""
    step = build_branch(TOKENS, 'batch')

    def take():
        x, f, grad = branch_inputs(TOKENS)
        step(x.requires_grad_(), f.requires_grad_()).backward(grad)

    def alive():
        return sum(
            isinstance(o, torch.Tensor) or 'Scaled' in type(o).__name__
            for o in gc.get_objects()
        )

    take()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        take()
        after = alive()
    finally:
        gc.enable()
    assert len(scalings) == 2 and after == before


@pytest.mark.parametrize(
    'library, name',
    [
        ('timm', 'ViT'),
        ('timm', 'ConvNeXt'),
        ('timm', 'Swin'),
        ('timm', 'EfficientNet'),
        ('torchvision', 'ViT'),
        ('torchvision', 'ConvNeXt'),
        ('torchvision', 'Swin'),
    ],
)
@pytest.mark.parametrize('autocast', [True, False])
def test_every_step_of_a_network(library, name, autocast, scalings):
    """Under autocast x and f differ in dtype in a ViT and in ConvNeXt."""
    family = find_family(library, name)
    model = family.build()
    insert_steps(model, **dict(family.options))
    perturb_gates(model).train()
    found = steps_of(model)
    assert {type(step) for step in found.values()} == {BranchStep}
    pairs = set()
    for step in found.values():
        step.observe(lambda step, x, f, *_: pairs.add((x.dtype, f.dtype)))
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        out = model(family.inputs())
    out.float().square().sum().backward()
    assert len(scalings) == len(found)
    if autocast and name in ('ViT', 'ConvNeXt'):
        assert any(x != f for x, f in pairs)
    for step in found.values():
        for p in step.attention.parameters():
            assert p.grad.isfinite().all()
    if not autocast:
        model.double().eval()
        images = family.inputs().double()
        by_hand = model(images)
        assert len(scalings) == 2 * len(found)
        with steps.fused(False):
            same(by_hand, model(images))
