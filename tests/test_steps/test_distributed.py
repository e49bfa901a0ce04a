"""Steps over several processes."""

from pathlib import Path

from tests.programs import run_ranks


def test_two_processes(tmp_path):
    """DDP and FSDP learn from two halves what one process learns from all.

    What the first process saves is whole, and each loads its part of it.
    """
    codes, outputs = run_ranks(
        2, Path(__file__).with_name('ddp_rank.py'), tmp_path)
    assert codes == [0, 0], outputs
