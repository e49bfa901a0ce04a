"""Triton's kernels against ATen's passes.

On a GPU where there is one, else in Triton's interpreter, which has to be
chosen before Triton is imported: a process of its own runs this file again.
The interpreter takes what the compiler refuses, so they are compiled as well,
which needs no GPU.
"""

import math
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

from mmstepnet import steps
from mmstepnet.attentions import StepNet
from mmstepnet.steps.tail import dispatch
from tests.test_steps import backends
from tests.test_steps.cases import (
    FORMATS,
    away_from_kink,
    build,
    inputs,
    run,
    worst,
)

triton = pytest.importorskip('triton', reason='needs triton')
if int(triton.__version__.split('.')[0]) < 3:
    pytest.skip(f'the kernels need Triton 3, this is {triton.__version__}',
                allow_module_level=True)

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
DEVICE = 'cpu' if INTERPRETED else 'cuda'

compiles = pytest.mark.skipif(
    INTERPRETED, reason='the interpreter compiles nothing')


@pytest.fixture
def passes(monkeypatch):
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip('no GPU; test_in_the_interpreter runs it')
    from mmstepnet.steps.tail import triton
    return triton


def run_module(name, *args, **env):
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', name, *args],
        env={**os.environ, **env}, capture_output=True, text=True)


@compiles
def test_compile(tmp_path):
    """For every GPU that is in use, without a register too many."""
    result = run_module('benchmarks.compile_kernels',
                        TRITON_CACHE_DIR=str(tmp_path))
    assert result.returncode == 0, result.stderr[-4000:]
    from mmstepnet.steps.tail import triton
    rows = [line.split() for line in result.stdout.splitlines()]
    for target in ('sm_80', 'sm_90', 'sm_100'):
        assert {row[1] for row in rows if row[0] == target} == {
            f'{name}_kernel' for name in triton.LAUNCH}
    assert all(0 < int(registers) <= 128 and int(spilled) <= 8
               for *_, registers, spilled in rows)


@compiles
def test_launches(tmp_path):
    """Six kernels, and no operation of PyTorch beside them."""
    result = run_module('benchmarks.count_launches', '--rounds', '2',
                        TRITON_CACHE_DIR=str(tmp_path))
    assert result.returncode == 0, result.stderr[-4000:]
    assert ('StepNet: 6 kernels of Triton, 0 operations of PyTorch;'
            in result.stdout)


@compiles
def test_in_the_interpreter():
    result = run_module('pytest', '-p', 'no:cacheprovider', __file__,
                        TRITON_INTERPRET='1')
    assert result.returncode == 0, result.stdout[-4000:]
    assert ' passed' in result.stdout


@pytest.mark.parametrize('memory_format, kinds', [
    (torch.contiguous_format, backends.EVERY),
    (torch.channels_last, backends.FEW)])
def test_equal_aten(passes, memory_format, kinds):
    backends.check_equals_aten(passes, DEVICE, torch.float32, memory_format,
                               (3, 3, 5, 4), kinds)


@pytest.mark.parametrize('memory_format', FORMATS)
@pytest.mark.parametrize('dtype,shape', [
    (torch.float16, (3, 3, 3, 4)), (torch.bfloat16, (3, 3, 3, 4)),
    (torch.float32, (3, 5, 1, 1)), (torch.float32, (3, 40, 1, 3)),
])
def test_other_dtypes_and_shapes(passes, dtype, memory_format, shape):
    backends.check_equals_aten(passes, DEVICE, dtype, memory_format, shape)


def test_one_image(passes):
    backends.check_equals_aten(
        passes, DEVICE, torch.float32, torch.contiguous_format, (1, 4, 3, 3),
        [('batch', 'running', True), ('running', 'none', True)])


@pytest.mark.parametrize('last', [False, True])
def test_more_than_one_split_or_chunk(passes, last, monkeypatch):
    """Maps in several splits of several tiles; images in several chunks.

    The tiles are smaller than any that is chosen, so that few programs do.
    """
    plan = passes.Geometry((last, 1, 1, 2, 4), 2, 2, ((3, 2, 1), 4), (2, 2),
                           ((1, 1, 1), 4))
    monkeypatch.setattr(passes, 'geometry', lambda *sizes: plan)
    backends.check_equals_aten(
        passes, DEVICE, torch.float32, FORMATS[last], (3, 2, 3, 5),
        backends.FEW[:1])


@compiles
def test_grids_of_large_maps():
    """CUDA takes 2^31 - 1 programs on the first axis, 65,535 on others."""
    from mmstepnet.steps.tail import triton
    for n, c, pixels in ((1, 128, 1600 * 1600), (65536, 64, 49),
                         (8, 2048, 400 * 400)):
        for last in (False, True):
            plan = triton.geometry(n, c, pixels, last)
            *_, block, tile = plan.tile
            assert plan.maps[0][0] < 2**31 and plan.splits <= 65_535
            assert block * plan.maps[0][0] >= n * c
            assert plan.splits * plan.span * tile >= pixels
            # Inside a tile offsets have 32 bits.
            assert max(block * pixels, tile * c) < 2**31


def test_geometry_is_of_few_kinds():
    """So that forty sizes of images compile no more than one or two."""
    from mmstepnet.steps.tail import triton
    kinds = {triton.geometry(2, 256, side * (side + 3), last).tile
             for side in range(7, 300) for last in (False, True)}
    assert len(kinds) <= 12


def test_large_means(passes):
    """Errors stay those of plain PyTorch where E[c²] - E[c]² has none left."""
    for memory_format in FORMATS:
        spec, x, c, learned = backends.tail_arguments(
            (3, 2, 3, 3), torch.float32, memory_format, DEVICE, 'batch',
            'batch', True)
        c = (torch.randn_like(c) + 1e3).contiguous(
            memory_format=memory_format)
        _, (kept, ) = passes.forward(spec, x, c, learned)
        rstd = kept[-4]
        exact = c.double().var((0, 2, 3), correction=0).rsqrt()
        torch.testing.assert_close(rstd.double(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize('training', [True, False])
def test_whole_step(passes, training, monkeypatch):
    """The autograd function over the kernels, against the reference path."""
    monkeypatch.setattr(dispatch, 'passes_for', lambda maps: passes)
    step, norm = build(StepNet, 6)
    step.to(DEVICE).train(training)
    norm.to(DEVICE).train(training)
    x, c, grad = (t.to(DEVICE) for t in inputs((3, 6, 3, 5), torch.float32))
    grad = away_from_kink(step, norm, x, c, grad, 1e-3)
    error, name = worst(
        run(True, step, norm, x, c, grad),
        run(False, step, norm, x, c, grad, torch.float64))
    assert error < 1e-4, name


def test_version_counters_tell_autograd(passes, monkeypatch):
    """Who saved running statistics learns that they have changed."""
    monkeypatch.setattr(dispatch, 'passes_for', lambda maps: passes)
    step, norm = build(StepNet, 6)
    step.to(DEVICE), norm.to(DEVICE)
    x, c, _ = (t.to(DEVICE) for t in inputs((3, 6, 1, 1), torch.float32))
    moved = [*norm.buffers(), *step.attention.bn.buffers()]
    before = [t._version for t in moved]
    with steps.fused(True):
        step(x, c, norm)
    assert all(t._version > v for t, v in zip(moved, before))


def test_wrong_kernels_are_noticed_before_they_are_used(
        passes, monkeypatch):
    device, backward = torch.device(DEVICE), passes.backward
    passes.try_on(device)

    def wrong(*args):
        d_x, d_c, d_learned = backward(*args)
        return d_x, 1.01 * d_c, d_learned
    monkeypatch.setattr(passes, 'backward', wrong)
    with pytest.raises(AssertionError, match='not close'):
        passes.try_on(device)


def test_maps_on_gpus_that_take_the_reference_path(monkeypatch):
    """Those of doubles, and those of AMD."""
    monkeypatch.setattr(dispatch, '_triton', lambda device: 'kernels')
    maps = SimpleNamespace(is_cuda=True, device=None, dtype=torch.float32)
    monkeypatch.setattr(torch.version, 'hip', None)
    assert dispatch.passes_for(maps) == 'kernels'
    maps.dtype = torch.float64
    assert dispatch.passes_for(maps) is None
    maps.dtype = torch.float32
    monkeypatch.setattr(torch.version, 'hip', '6.4')
    assert dispatch.passes_for(maps) is None


@compiles
@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_kernels_that_do_not_build_warn_once():
    """And the reference path is taken."""
    dispatch._triton.cache_clear()
    with pytest.warns(UserWarning, match='takes the reference path') as seen:
        assert dispatch._triton(torch.device('cuda:0')) is None
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert dispatch._triton(torch.device('cuda:0')) is None
    assert len(seen) == 1
    dispatch._triton.cache_clear()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')
def test_on_another_than_the_current_device(passes):
    backends.check_equals_aten(passes, 'cuda:1', torch.float32,
                               torch.contiguous_format, (5, 3, 5, 4))
    assert torch.cuda.current_device() == 0


def test_one_pixel_has_no_dangers():
    """A grid of one program, a tile that is larger than the map."""
    from mmstepnet.steps.tail import triton
    plan = triton.geometry(1, 1, 1, False)
    assert plan.splits == 1 and math.prod(plan.maps[0]) == 1
