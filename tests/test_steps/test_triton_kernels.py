"""Triton's kernels against the plain passes.

On a GPU where there is one, else in Triton's interpreter, which has to be
chosen before Triton is imported: a process of its own runs this file again.
The interpreter takes what the compiler refuses, so they are compiled as well,
which needs no GPU.
"""

import math
import os
import subprocess
import sys

import pytest
import torch

from tests.test_steps import backends

triton = pytest.importorskip('triton', reason='needs triton')

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'


triton_3 = pytest.mark.skipif(
    int(triton.__version__.split('.')[0]) < 3,
    reason=f'the kernels need Triton 3, this is {triton.__version__}')


@triton_3
@pytest.mark.skipif(INTERPRETED, reason='the interpreter compiles nothing')
def test_compile(tmp_path):
    result = subprocess.run(
        [sys.executable, '-m', f'{__package__}.compile_kernels'],
        env={**os.environ, 'TRITON_CACHE_DIR': str(tmp_path)},
        capture_output=True,
        text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    from mmstepnet.steps.kernels import triton_kernels
    kernels = {n for n in vars(triton_kernels) if n.endswith('_kernel')}
    rows = [line.split() for line in result.stdout.splitlines()]
    assert len(kernels) == 5
    for target in ('sm_80', 'sm_90', 'sm_100'):
        assert {row[1] for row in rows if row[0] == target} == kernels
    assert all(0 < int(registers) <= 255 for *_, registers, _ in rows)


@triton_3
@pytest.mark.slow
@pytest.mark.parametrize('shape', ['8 256 28 28', '2 256 200 336'])
def test_launches(shape):
    """A tail's on CUDA, counted in what Inductor writes for it."""
    result = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m',
         f'{__package__}.count_launches', 'StepNet', 'ECA', 'SRM', '--shape',
         *shape.split()],
        capture_output=True,
        text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    found = [line.split()[:2] for line in result.stdout.splitlines()]
    assert [name for name, _ in found] == ['StepNet', 'ECA', 'SRM']
    # Five or four passes over maps, and at least a kernel a direction.
    assert all(6 <= int(launches) <= 14 for _, launches in found)


@triton_3
@pytest.mark.skipif(INTERPRETED, reason='this is the interpreter')
def test_in_the_interpreter():
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', __file__],
        env={**os.environ, 'TRITON_INTERPRET': '1'},
        capture_output=True,
        text=True)
    assert result.returncode == 0, result.stdout[-4000:]
    assert ' passed' in result.stdout


@pytest.fixture
def kernels(monkeypatch):
    """The kernels' module and the device it runs on."""
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip('no GPU; test_in_the_interpreter runs it')
    from mmstepnet.steps.kernels import triton_kernels
    if INTERPRETED:
        # Several tiles a map, several splits a reduction, in a few elements.
        monkeypatch.setattr(triton_kernels, 'TILE', 16)
        monkeypatch.setattr(triton_kernels, 'PROGRAMS', 16)
    return triton_kernels, 'cpu' if INTERPRETED else 'cuda'


@pytest.mark.parametrize('memory_format', backends.FORMATS)
@pytest.mark.parametrize('dtype,shape', [
    *((dtype, (2, 3, 5, 4)) for dtype in backends.TOLERANCES),
    (torch.float32, (2, 5, 1, 1)),
])
def test_equal_plain(kernels, dtype, memory_format, shape):
    backends.check_equal_plain(*kernels, dtype, memory_format, shape)


@pytest.mark.parametrize('memory_format', backends.FORMATS)
def test_more_than_one_tile_and_split(memory_format, monkeypatch):
    """Of the size that a GPU is given."""
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip('no GPU; test_in_the_interpreter runs it')
    from mmstepnet.steps.kernels import triton_kernels
    shape = (2, 5, 70, 70)
    maps = torch.empty(shape).contiguous(memory_format=memory_format)
    launch = triton_kernels._Launch(maps)
    assert launch.grid[0] > launch.rows and launch.spans()[0] > 1
    backends.check_equal_plain(
        triton_kernels, 'cpu' if INTERPRETED else 'cuda', torch.float32,
        memory_format, shape)


@triton_3
@pytest.mark.skipif(INTERPRETED, reason='the tiles of a GPU are larger')
def test_grids_of_large_maps():
    """CUDA takes 2^31 - 1 programs on the first axis, 65,535 on others."""
    from mmstepnet.steps.kernels import triton_kernels
    shape = (1, 128, 1600, 1600)
    for memory_format in backends.FORMATS:
        launch = triton_kernels._Launch(torch.empty(
            shape, device='meta', memory_format=memory_format))
        tiles, = launch.grid
        assert 65_535 < tiles < 2**31
        assert launch.bc * launch.bp * tiles >= math.prod(shape)
        assert launch.spans()[0] <= 65_535


def test_large_means(kernels):
    backends.check_large_means(*kernels)


def test_whole_step(kernels, monkeypatch):
    backends.check_whole_step(*kernels, monkeypatch)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')
def test_on_another_than_the_current_device(kernels):
    module, _ = kernels
    x = torch.randn(2, 3, 5, 4, device='cuda:1')
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(module.total(x).sum(0), x.sum((2, 3)))
