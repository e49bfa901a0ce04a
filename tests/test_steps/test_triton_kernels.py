"""Triton's kernels against ATen's passes.

On a GPU where there is one, else in Triton's interpreter, which has to be
chosen before Triton is imported: a process of its own runs this file again.
The interpreter takes what the compiler refuses, so they are compiled as well,
which needs no GPU.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from mmstepnet import steps
from mmstepnet.attentions import StepNet
from mmstepnet.messages import LOGGER
from mmstepnet.steps.tail import aten, dispatch, scaled_aten
from tests.test_steps import backends
from tests.test_steps.cases import (
    ARRANGEMENTS,
    FORMATS,
    Arrangement,
    away_from_kink,
    branch_inputs,
    build,
    build_branch,
    inputs,
    run,
    run_branch,
    worst,
)

triton = pytest.importorskip('triton', reason='needs triton')
if int(triton.__version__.split('.')[0]) < 3:
    pytest.skip(
        f'the kernels need Triton 3, this is {triton.__version__}',
        allow_module_level=True,
    )

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
DEVICE = 'cpu' if INTERPRETED else 'cuda'

compiles = pytest.mark.skipif(
    INTERPRETED, reason='the interpreter compiles nothing'
)


@pytest.fixture
def passes(monkeypatch):
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip('no GPU; test_in_the_interpreter runs it')
    from mmstepnet.steps.tail import triton

    monkeypatch.setattr(dispatch, 'passes_for', lambda maps, oracle: triton)
    return triton


@pytest.fixture
def scaled_passes(passes, monkeypatch):
    from mmstepnet.steps.tail import scaled_triton

    monkeypatch.setattr(
        dispatch, 'passes_for', lambda maps, oracle: scaled_triton
    )
    return scaled_triton


def run_python(*args, **env):
    result = subprocess.run(
        [sys.executable, '-W', 'ignore', *args],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


@compiles
def test_in_the_interpreter():
    out = run_python(
        '-m',
        'pytest',
        '-p',
        'no:cacheprovider',
        __file__,
        TRITON_INTERPRET='1',
    )
    assert ' passed' in out


@compiles
def test_compile(tmp_path):
    """For every GPU that is in use, without a register too many."""
    out = run_python(
        '-m', 'benchmarks.compile_kernels', TRITON_CACHE_DIR=str(tmp_path)
    )
    from mmstepnet.steps.tail import scaled_triton
    from mmstepnet.steps.tail import triton as passes

    rows = [line.split() for line in out.splitlines()]
    for target in ('sm_80', 'sm_90', 'sm_100'):
        assert {row[1] for row in rows if row[0] == target} == {
            *(f'{name}_kernel' for name in passes.LAUNCH),
            *(f'scaled.{name}_kernel' for name in scaled_triton.LAUNCH),
        }
    assert all(
        0 < int(registers) <= 128 and int(spilled) <= 8
        for *_, registers, spilled in rows
    )


@compiles
@pytest.mark.parametrize(
    'options, operations',
    [
        pytest.param([], 0, id='tail'),
        # The sum of the block, and that of two gradients by autograd.
        pytest.param(['--branches'], 2, id='branch'),
    ],
)
def test_launches(options, operations, tmp_path):
    """Six kernels, and no operation of PyTorch that the step makes.

    No time is read, so one call in each round is enough.
    """
    out = run_python(
        '-c',
        'from benchmarks import count_launches\n'
        'count_launches.CALLS = 1\n'
        'count_launches.NETWORKS = {}\n'
        'count_launches.main()',
        '--rounds',
        '2',
        *options,
        TRITON_CACHE_DIR=str(tmp_path),
    )
    assert (
        f'StepNet: 6 kernels of Triton, {operations} operations of PyTorch;'
        in out
    )


@pytest.mark.parametrize(
    'dtype,memory_format,shape,kinds',
    [
        pytest.param(
            torch.float32,
            FORMATS[0],
            (5, 3, 5, 4),
            backends.EVERY,
            id='every kind',
        ),
        pytest.param(
            torch.float32,
            FORMATS[1],
            (5, 3, 5, 4),
            backends.FEW,
            id='channels_last',
        ),
        pytest.param(
            torch.float32,
            FORMATS[0],
            (1, 4, 3, 3),
            [('batch', 'running', True), ('running', 'none', True)],
            id='other kinds',
        ),
        *[
            pytest.param(
                dtype,
                memory_format,
                shape,
                backends.FEW,
                id=f'{name}, {str(memory_format)[6:]}',
            )
            for memory_format in FORMATS
            for name, dtype, shape in (
                ('float16', torch.float16, (3, 3, 3, 4)),
                ('bfloat16', torch.bfloat16, (3, 3, 3, 4)),
                ('one pixel', torch.float32, (5, 5, 1, 1)),
                ('a row', torch.float32, (5, 40, 1, 3)),
            )
        ],
    ],
)
def test_equal_aten(passes, dtype, memory_format, shape, kinds):
    backends.check_equals_aten(
        passes, DEVICE, dtype, memory_format, shape, kinds
    )


BRANCHES = {
    'tokens': ARRANGEMENTS['tokens'],
    'maps': ARRANGEMENTS['maps'],
    'channels_last beside': ARRANGEMENTS[
        'maps in channels_last beside a state'
    ],
    'beside channels_last': ARRANGEMENTS[
        'maps beside a state in channels_last'
    ],
    'volumes of tokens': ARRANGEMENTS['volumes of tokens'],
    'images inside': ARRANGEMENTS['tokens, images inside, beside others'],
    'beside images inside': ARRANGEMENTS[
        'tokens beside a state with images inside'
    ],
    'vectors': ARRANGEMENTS['vectors'],
    'channels that a vector divides': Arrangement((5, 3, 16), 0, 2),
    'more channels than a tile has': Arrangement((5, 17, 67), 0, 2),
    'a last tile of one place': Arrangement((5, 3, 129), 0, 1),
}


@pytest.mark.parametrize('arrangement', BRANCHES.values(), ids=BRANCHES)
@pytest.mark.parametrize(
    'dtype, x_dtype',
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
    ],
)
def test_scaled(scaled_passes, arrangement, dtype, x_dtype):
    """A step at a branch's end, with a gate in each of its modes."""
    every = arrangement == ARRANGEMENTS['tokens']
    gates = backends.KINDS if every else ('batch',)
    backends.check_scaled(
        scaled_passes, DEVICE, arrangement, dtype, x_dtype, gates
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    'arrangement', ARRANGEMENTS.values(), ids=ARRANGEMENTS
)
@pytest.mark.parametrize('dtype', backends.TOLERANCES)
@pytest.mark.parametrize('x_dtype', backends.TOLERANCES)
def test_scaled_in_every_form(scaled_passes, arrangement, dtype, x_dtype):
    backends.check_scaled(
        scaled_passes, DEVICE, arrangement, dtype, x_dtype, backends.KINDS
    )


def small_tiles(last):
    """Tiles that are smaller than any that is chosen, in two splits of three.

    Five images go in three chunks. The last split has a tile too many.
    """
    from mmstepnet.steps.tail.triton import Geometry

    return Geometry(
        (last, 1, 1, 2, 4), 3, 2, ((5, 2, 1), 4), (2, 2), ((1, 1, 1), 4)
    )


@pytest.mark.parametrize('last', [False, True])
def test_scaled_in_more_than_one_split_or_chunk(
    scaled_passes, last, monkeypatch
):
    plan = small_tiles(last)
    monkeypatch.setattr(scaled_passes, 'geometry', lambda *sizes: plan)
    arrangement = Arrangement(
        *(((5, 18, 2), 0, 2) if last else ((5, 2, 18), 0, 1))
    )
    backends.check_scaled(
        scaled_passes,
        DEVICE,
        arrangement,
        torch.float32,
        torch.float32,
        ('batch',),
    )


@pytest.mark.parametrize('last', [False, True])
def test_more_than_one_split_or_chunk(passes, last, monkeypatch):
    """Maps in splits of several tiles; images in chunks."""
    plan = small_tiles(last)
    monkeypatch.setattr(passes, 'geometry', lambda *sizes: plan)
    backends.check_equals_aten(
        passes,
        DEVICE,
        torch.float32,
        FORMATS[last],
        (5, 2, 3, 6),
        backends.FEW[:1],
    )


NO_BATCH = [kinds for kinds in backends.EVERY if 'batch' not in kinds]


@pytest.mark.parametrize(
    'memory_format, pixels',
    [
        (FORMATS[0], (5, 4)),
        (FORMATS[1], (9, 8)),
        (FORMATS[0], (32, 32)),
        pytest.param(FORMATS[1], (32, 32), marks=pytest.mark.slow),
    ],
)
def test_maps_that_a_program_holds(passes, memory_format, pixels):
    """By running statistics, in each kind of tile."""
    backends.check_equals_aten(
        passes,
        DEVICE,
        torch.float32,
        memory_format,
        (2, 3, *pixels),
        NO_BATCH if pixels == (5, 4) else NO_BATCH[:1],
    )


@pytest.mark.parametrize(
    'last, places',
    [
        (False, 20),
        (True, 72),
        (False, 1024),
        pytest.param(True, 1024, marks=pytest.mark.slow),
    ],
)
def test_branches_that_a_program_holds(scaled_passes, last, places):
    shape = (2, places, 3) if last else (2, 3, places)
    backends.check_scaled(
        scaled_passes,
        DEVICE,
        Arrangement(shape, 0, 2 if last else 1),
        torch.float32,
        torch.float32,
        ['running'],
    )


def test_maps_that_no_program_holds(passes, scaled_passes, monkeypatch):
    monkeypatch.setattr(passes, 'MOST_PLACES', 0)
    backends.check_equals_aten(
        passes, DEVICE, torch.float32, FORMATS[0], (2, 3, 5, 4), NO_BATCH
    )
    backends.check_scaled(
        scaled_passes,
        DEVICE,
        ARRANGEMENTS['tokens'],
        torch.float32,
        torch.float32,
        ['running', 'none'],
    )


@compiles
def test_geometry():
    """CUDA takes 2^31 - 1 programs on the first axis, 65,535 on others.

    Forty sizes of images compile no more than one or two kinds of tiles.
    """
    from mmstepnet.steps.tail import triton

    kinds = set()
    for n, c, pixels in (
        (1, 128, 1600 * 1600),
        (65536, 64, 49),
        (1, 1, 1),
        (8, 2048, 400 * 400),
        *((2, 256, side * (side + 3)) for side in range(7, 300)),
    ):
        for last in (False, True):
            plan = triton.geometry(n, c, pixels, last)
            *_, block, tile = plan.tile
            assert plan.maps[0][0] < 2**31 and plan.splits <= 65_535
            assert block * plan.maps[0][0] >= n * c
            assert plan.splits * plan.span * tile >= pixels
            # Inside a tile offsets have 32 bits.
            assert max(block * pixels, tile * c) < 2**31
            kinds.add(plan.tile)
    assert len(kinds) <= 16


def test_large_means(passes):
    """Errors stay those of plain PyTorch where E[c²] - E[c]² has none left."""
    for memory_format in FORMATS:
        spec, x, c, learned = backends.tail_arguments(
            (3, 2, 3, 3),
            torch.float32,
            memory_format,
            DEVICE,
            'batch',
            'batch',
            True,
        )
        c = (torch.randn_like(c) + 1e3).contiguous(memory_format=memory_format)
        _, (kept,) = passes.forward(spec, x, c, learned)
        rstd = kept[-4]
        exact = c.double().var((0, 2, 3), correction=0).rsqrt()
        torch.testing.assert_close(rstd.double(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize('training', [True, False])
def test_whole_step(passes, training):
    """The autograd function over the kernels, against the reference path.

    Who saved running statistics learns that they have changed.
    """
    step, norm = (m.to(DEVICE).train(training) for m in build(StepNet, 6))
    args = [t.to(DEVICE) for t in inputs((3, 6, 3, 5), torch.float32)]
    args[2] = away_from_kink(step, norm, *args, 1e-3)
    error, name = worst(
        run(True, step, norm, *args),
        run(False, step, norm, *args, torch.float64),
    )
    assert error < 1e-4, name
    moved = [*norm.buffers(), *step.attention.bn.buffers()]
    before = [t._version for t in moved]
    with steps.fused(True):
        step(*args[:2], norm)
    assert all((t._version > v) == training for t, v in zip(moved, before))


@pytest.mark.parametrize('training', [True, False])
def test_whole_step_of_a_branch(scaled_passes, training):
    """The autograd function over the kernels, against the reference path."""
    arrangement = ARRANGEMENTS['tokens']
    step = build_branch(arrangement, 'batch').float().to(DEVICE)
    step.train(training)
    args = [t.to(DEVICE) for t in branch_inputs(arrangement, torch.float32)]
    error, name = worst(
        run_branch(True, step, *args),
        run_branch(False, step, *args, torch.float64),
    )
    assert error < 1e-4, name
    moved = list(step.attention.bn.buffers())
    before = [t._version for t in moved]
    with steps.fused(True):
        step(*args[:2])
    assert all((t._version > v) == training for t, v in zip(moved, before))


@pytest.mark.parametrize('kind', ['tail', 'scaled'])
def test_statistics_that_are_not_finite_leave_no_trace(
    kind, passes, scaled_passes
):
    """Of the gate, as where a GradScaler skips a batch."""
    if kind == 'tail':
        spec, x, c, learned = backends.tail_arguments(
            (3, 4, 2, 2),
            torch.float32,
            FORMATS[0],
            DEVICE,
            'none',
            'batch',
            True,
        )
        own = passes
    else:
        spec, x, c, learned, _ = backends.scaled_arguments(
            Arrangement((3, 4, 4), 0, 1),
            torch.float32,
            torch.float32,
            DEVICE,
            'batch',
        )
        own = scaled_passes
    x[1, 2] = torch.inf
    before = spec.gate.mean.clone(), spec.gate.var.clone()
    own.forward(spec, x, c, learned)
    for now, was in zip((spec.gate.mean, spec.gate.var), before):
        kept = [float(a) == float(b) for a, b in zip(now, was)]
        assert kept == [False, False, True, False]
    assert spec.gate.count == 1


def test_wrong_kernels_are_noticed_before_they_are_used(passes, monkeypatch):
    device, backward = torch.device(DEVICE), passes.backward
    dispatch.check(passes, aten, device)

    def wrong(*args):
        d_x, d_c, d_learned = backward(*args)
        return d_x, 1.01 * d_c, d_learned

    monkeypatch.setattr(passes, 'backward', wrong)
    with pytest.raises(AssertionError, match='not close'):
        dispatch.check(passes, aten, device)


def test_wrong_kernels_of_a_branch_are_noticed_too(scaled_passes, monkeypatch):
    device, backward = torch.device(DEVICE), scaled_passes.backward
    dispatch.check(scaled_passes, scaled_aten, device)

    def wrong(*args):
        d_x, d_f, d_learned = backward(*args)
        return 1.01 * d_x, d_f, d_learned

    monkeypatch.setattr(scaled_passes, 'backward', wrong)
    with pytest.raises(AssertionError, match='not close'):
        dispatch.check(scaled_passes, scaled_aten, device)


def test_maps_on_gpus_that_take_the_reference_path(monkeypatch):
    """Those of doubles, and those of AMD."""
    monkeypatch.setattr(dispatch, '_triton', lambda device, oracle: 'kernels')
    for dtype, hip, wanted in (
        (torch.float32, None, 'kernels'),
        (torch.float64, None, None),
        (torch.float32, '6.4', None),
    ):
        monkeypatch.setattr(torch.version, 'hip', hip)
        assert (
            dispatch.passes_for(
                SimpleNamespace(
                    is_cuda=True, is_cpu=False, device='cuda', dtype=dtype
                ),
                aten,
            )
            == wanted
        )


@compiles
@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_kernels_that_do_not_build_warn_once(monkeypatch):
    """And the reference path is taken."""
    monkeypatch.setattr(LOGGER, 'handlers', [])  # OpenMMLab's log
    dispatch._triton.cache_clear()
    with pytest.warns(UserWarning, match='takes the reference path') as seen:
        for _ in range(2):
            assert dispatch._triton(torch.device('cuda:0'), aten) is None
    assert len(seen) == 1
    dispatch._triton.cache_clear()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')
def test_on_another_than_the_current_device(passes):
    backends.check_equals_aten(
        passes, 'cuda:1', torch.float32, torch.contiguous_format, (5, 3, 5, 4)
    )
    assert torch.cuda.current_device() == 0
