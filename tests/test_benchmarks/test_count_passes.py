"""Passes of a compiled tail, in the code that Inductor would compile."""

import pytest
import torch

from tests.programs import run_tool

SCRIPT = """
import torch
from benchmarks.absent_gpu import AbsentGPU
from benchmarks.count_passes import driver, passes_of_a_tail
driver.set_active(AbsentGPU(90))
print(*(sum(passes_of_a_tail(gate, True, torch.bfloat16, torch.channels_last,
                             (256, 256, 56, 56)))
        for gate in (None, 'StepNet')))
"""


BRANCHES = """
import torch
from benchmarks.absent_gpu import AbsentGPU
from benchmarks.count_passes import driver, passes_of_a_branch
driver.set_active(AbsentGPU(90))
for gate in (None, 'StepNet'):
    passes, steps = passes_of_a_branch('ConvNeXt-T', gate, torch.bfloat16,
                                       256)
    print(sum(passes), steps)
"""

with_its_insides = pytest.mark.skipif(
    not torch.__version__.startswith('2.12.'),
    reason='it replaces insides of PyTorch 2.12',
)


@with_its_insides
def test_a_step_is_read_in_no_more_passes_than_a_plain_tail():
    pytest.importorskip('triton')
    plain, step = map(float, run_tool('-c', SCRIPT).stdout.split()[-2:])
    assert 0 < step <= plain


@pytest.mark.slow
@with_its_insides
def test_a_step_at_the_end_of_a_branch():
    pytest.importorskip('triton')
    pytest.importorskip('timm')
    *_, plain, none, step, one = run_tool('-c', BRANCHES).stdout.split()
    assert (float(none), float(one)) == (0, 1)
    assert 0 < float(step) - float(plain) <= 3
