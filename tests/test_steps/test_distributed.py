"""Steps over several processes."""

from pathlib import Path

from tests.documents import ROOT
from tests.programs import run_tool
from tests.utils import free_port


def test_two_processes(tmp_path):
    """DDP and FSDP learn from two halves what one process learns from all.

    What the first process saves is whole, and each loads its part of it.
    """
    run_tool(
        '-m',
        'torch.distributed.run',
        '--nproc-per-node=2',
        f'--master-port={free_port()}',
        Path(__file__).with_name('ddp_rank.py'),
        tmp_path,
        PYTHONPATH=str(ROOT),
    )
