"""What holds for every attention."""

import copy
import math
import re

import pytest
import torch
import torch.nn as nn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.func import functional_call

from mmstepnet.attentions import ATTENTIONS, build_attention, choose_step
from mmstepnet.steps import ResidualStep, fused
from tests.test_attentions.conftest import ATTENTIONS as CFGS
from tests.utils import not_on_torch_21, perturb

BOUNDED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=list(HealthCheck),
)


class Chooser(nn.Module):
    """An attention of either kind, called with the maps."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, f):
        return choose_step(self.attention, x, f)


@BOUNDED
@given(
    shape=st.tuples(
        st.integers(1, 4),
        st.integers(1, 40),
        st.integers(1, 9),
        st.integers(1, 9),
    ),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    training=st.booleans(),
    scale=st.sampled_from([0, 1e-30, 1.0, 1e4]),
    layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
)
def test_any_shape_and_type(cfg, shape, dtype, training, scale, layout):
    """Of maps that are constant, too; gradients are finite."""
    attention = perturb(build_attention(cfg, shape[1], map_size=8)).train(
        training
    )
    x, f = (
        (scale * torch.randn(shape) + 1)
        .to(dtype)
        .contiguous(memory_format=layout)
        .requires_grad_()
        for _ in 'xf'
    )
    try:
        step = choose_step(attention, x, f)
    except ValueError as error:
        # A channel's only value has no variance.
        assert 'at least 2 images' in str(error)
        assert training and shape[0] == 1
        return
    assert step.dtype == dtype
    assert step.broadcast_to(f.shape).isfinite().all()
    is_constant = cfg['type'] == 'LayerScale'  # any number; sees no map
    assert is_constant or 0 <= step.min() and step.max() <= 1
    if not training:  # then an image does not see its batch
        torch.testing.assert_close(
            choose_step(attention, x[:1], f[:1]), step[:1]
        )
    step.sum().backward()
    gradients = [
        t.grad for t in (x, f, *attention.parameters()) if t.grad is not None
    ]
    assert len(gradients) > (0 if is_constant else 1)
    assert all(gradient.isfinite().all() for gradient in gradients)


@BOUNDED
@given(data=st.data())
def test_what_is_not_finite_stays_visible(cfg, data):
    """In its own image; the others do not change. In both paths alike."""
    shape = data.draw(
        st.tuples(
            st.integers(2, 3),
            st.integers(2, 20),
            st.integers(1, 8),
            st.integers(1, 8),
        )
    )
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    bad = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    training = data.draw(st.booleans())
    attention = perturb(build_attention(cfg, shape[1], map_size=7))
    # A ReLU makes 0 of -inf.
    step = ResidualStep(attention, nn.ReLU() if math.isnan(bad) else None)
    step.train(training)
    norm = perturb(nn.BatchNorm2d(shape[1])).train(training)
    x, f = torch.randn(2, *shape).unbind(0)
    spoilt = x.clone(), f.clone()
    data.draw(st.sampled_from(spoilt))[place] = bad
    broken = []
    for fast in (False, True):
        with fused(fast):
            expected, out = step(x, f, norm), step(*spoilt, norm)
        broken.append(~out.isfinite().flatten(2).all(2))
        assert broken[-1][place[0]].any()
        if not training:
            others = [n for n in range(shape[0]) if n != place[0]]
            assert torch.equal(out[others], expected[others])
    assert torch.equal(*broken)


def test_gradients(cfg, maps):
    """Those of differences; every parameter learns."""
    C = 4
    if 'reduction' in ATTENTIONS.find(cfg['type']).recorded:
        cfg = dict(cfg, reduction=1)  # a single hidden unit can be dead
    attention = perturb(build_attention(cfg, C, map_size=7)).double().train()
    x, f = maps(3, C, 3, 5, dtype=torch.float64)
    names, parameters = zip(*attention.named_parameters())
    inputs = tuple(
        t.detach().double().requires_grad_() for t in (x, f, *parameters)
    )

    def step(x, f, *parameters):
        values = {f'attention.{n}': p for n, p in zip(names, parameters)}
        return functional_call(Chooser(attention), values, (x, f))

    assert gradcheck(step, inputs)
    found = torch.autograd.grad(step(*inputs).square().sum(), inputs[2:])
    assert all(gradient.any() for gradient in found)


@pytest.mark.parametrize('scale', [1e-4, 2e3])
@pytest.mark.parametrize(
    'dtype, tolerance',
    [
        pytest.param(
            torch.float16,
            5e-3,
            marks=not_on_torch_21('has no float16 autocast on CPU'),
        ),
        (torch.bfloat16, 3e-2),
    ],
)
def test_half_precision(cfg, dtype, tolerance, scale):
    """Under autocast, and of a module in half.

    The sum over a map of 2e3 is 65 times what float16 reaches.
    """
    attention = build_attention(cfg, 16, map_size=8)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.1)
    x, f = (
        (scale * (torch.rand(4, 16, 48, 48) + 0.5)).to(dtype) for _ in 'xf'
    )
    twin = copy.deepcopy(attention)
    expected = choose_step(
        copy.deepcopy(attention).double(), x.double(), f.double()
    )
    with torch.autocast('cpu', dtype=dtype):
        step = choose_step(attention, x, f)
    gradients = torch.autograd.grad(
        step.float().mean(), attention.parameters(), allow_unused=True
    )
    assert all(g is None or g.isfinite().all() for g in gradients)
    for found in (step, choose_step(twin.eval().to(dtype), x, f)):
        assert found.dtype == dtype
        error = (found.double() - expected).norm() / expected.norm()
        assert error < tolerance
        expected = choose_step(twin.float().double(), x.double(), f.double())


def compiled(chooser, inputs):
    torch._dynamo.reset()
    return torch.compile(chooser, backend='eager', fullgraph=True)


def exported(chooser, inputs):
    sides = {2: torch.export.Dim('height'), 3: torch.export.Dim('width')}
    return torch.export.export(
        chooser, inputs, dynamic_shapes=(sides, sides)
    ).module()


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.parametrize(
    'cfg',
    [  # each class once
        dict(type=name) for name in ATTENTIONS if name != 'Plain'
    ],
    ids=lambda cfg: cfg['type'],
)
@pytest.mark.parametrize(
    'make',
    [
        compiled,
        torch.jit.trace,
        pytest.param(exported, marks=not_on_torch_21('exports no free sizes')),
    ],
)
def test_graphs_serve_every_size(cfg, make, maps):
    attention = perturb(build_attention(cfg, 16, map_size=9)).eval()
    graph = make(Chooser(attention), maps(2, 16, 9, 9))
    for size in ((9, 9), (13, 20), (5, 7)):
        x, f = maps(2, 16, *size)
        torch.testing.assert_close(graph(x, f), choose_step(attention, x, f))


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize(
    'init_step, dtype',
    [(1.0, torch.float32), (1.0, torch.float64), (0.375, torch.float32)],
)
def test_init_step_is_the_first_step(cfg, init_step, dtype, training, maps):
    """Exactly, also of a module that was cast, and after an update nearly.

    A constant's weight is the step itself, and half precision holds 0.375.
    With the weights that the paper starts SRM from, it would move by 0.8.
    """
    attention = build_attention(
        dict(cfg, init_step=init_step), 48, map_size=7
    ).train(training)
    twin = copy.deepcopy(attention).half().to(dtype)
    step = choose_step(twin, *maps(3, 48, 6, 5, dtype=dtype))
    torch.testing.assert_close(
        step,
        torch.full_like(step, init_step),
        rtol=0,
        atol=1e-7 * (init_step != 1),
    )
    x, f = maps(8, 48, 6, 5)
    (f * choose_step(attention, x, f) * torch.randn_like(f)).mean().backward()
    with torch.no_grad():
        for parameter in attention.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    moved = choose_step(attention, x, f) - init_step
    assert 0 < moved.abs().max() < 0.25


def test_sge_takes_the_largest_divisor():
    assert build_attention(dict(type='SGE'), 96).groups == 48


@pytest.mark.parametrize(
    'name, bad, compiled',
    [
        *(
            (name, bad, False)
            for bad in (math.inf, math.nan, 1e30)
            for name in (
                'SRM',
                'CBAM',
                'StepNet',
                'StepNet-cited',
                'OursNormFirst',
                'OursMeanStd',
            )
        ),
        # What is compiled does not depend on the value. One norm is given
        # (N, C), and one maps.
        ('StepNet', 1e30, True),
        ('CBAM', math.nan, True),
    ],
)
def test_statistics_that_are_not_finite_are_not_taken(
    name, bad, compiled, maps
):
    """Of a channel; the others go on, as BN's own formula has it."""
    torch._dynamo.reset()
    trained = perturb(build_attention(CFGS[name], 8)).train()
    twin, call = copy.deepcopy(trained), Chooser(trained)
    if compiled:
        call = torch.compile(call, backend='aot_eager', fullgraph=True)
    before = {k: v.clone() for k, v in trained.named_buffers()}
    x, f = maps(4, 8, 3, 3)
    broken = f.clone()
    broken[1, 2, 0, 0] = bad
    call(x, broken)
    choose_step(twin, x, f)
    for key, value in trained.named_buffers():
        assert value.isfinite().all()
        if 'running' in key:
            kept = value == before[key]
            assert kept.sum() in (1, 2)  # CBAM's only one; a pair's states
            torch.testing.assert_close(
                value[~kept], twin.get_buffer(key)[~kept]
            )


NO_NUMBER = (0, -1, 'x', [], math.nan)


REFUSED = {  # config, channels, error and what it says
    **{
        f'{wrong!r} channels': (
            dict(type='StepNet'),
            wrong,
            ValueError,
            'channels',
        )
        for wrong in NO_NUMBER
    },
    **{
        f'{name} of {wrong!r}': (
            dict({'type': kind, name: wrong}),
            64,
            ValueError,
            f'{name} must be .*positive.*got {re.escape(repr(wrong))}',
        )
        for kind, name in (
            ('SE', 'reduction'),
            ('SGE', 'groups'),
            ('StepNet', 'init_step'),
        )
        for wrong in NO_NUMBER
    },
    'inputs': (
        dict(type='StepNet', inputs='f'),
        64,
        ValueError,
        "one of .*got 'f'",
    ),
    'iebn': (
        dict(type='StepNet', iebn='bn'),
        64,
        ValueError,
        "iebn must be .*got 'bn'",
    ),
    'no map_size': (dict(type='FCA'), 64, ValueError, 'map_size.* got None'),
    'a small map_size': (
        dict(type='FCA', map_size=6),
        64,
        ValueError,
        'at least 7, got 6',
    ),
    'another start of Plain': (
        dict(type='Plain', init_step=0.5),
        64,
        ValueError,
        'must be 1.*got 0.5',
    ),
    **{
        f'initial of {wrong!r}': (
            dict(type='LayerScale', initial=wrong),
            64,
            ValueError,
            f'initial must be a finite number, got {re.escape(repr(wrong))}',
        )
        for wrong in (True, 'x', [], math.nan, math.inf)
    },
    'an unknown argument': (dict(type='SE', ratio=4), 64, TypeError, 'ratio'),
    'an unknown type': (
        dict(type='Nonsense'),
        64,
        KeyError,
        "'Nonsense' is unknown.*StepNet",
    ),
    'a name': ('SE', 64, TypeError, "got 'SE'"),
}


@pytest.mark.parametrize(
    'cfg, channels, error, message', REFUSED.values(), ids=REFUSED
)
def test_refused(cfg, channels, error, message):
    with pytest.raises(error, match=message):
        build_attention(cfg, channels)


@pytest.mark.parametrize('init_step', [None, 1.0])
def test_printed_are_the_arguments_that_are_not_the_defaults(cfg, init_step):
    """It can be built again from them, and from none fewer."""
    given = dict(cfg, init_step=init_step)
    attention = build_attention(given, 64, map_size=14)
    shown = eval(f'dict({attention.extra_repr()})')
    assert shown.pop('channels') == 64

    def record(without=None):
        kept = {k: v for k, v in shown.items() if k != without}
        return build_attention(
            dict(kept, type=cfg['type']), 64, map_size=7
        ).record()

    assert record() == attention.record()
    assert all(record(name) != attention.record() for name in shown)
