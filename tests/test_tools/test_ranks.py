"""Training over 1 and 2 gloo processes, and with one that dies."""

import json
import re
import time

import pytest
import torch

from tests.documents import ROOT
from tests.programs import (
    call_tool,
    load_tool,
    run_program,
    run_ranks,
)

GLOBAL_BATCH = 64
ITERATIONS = 20
IMAGES = 37  # over 2 processes a remainder


def write_config(folder, ranks, hook, **options):
    """20 iterations without augmentation, BN in eval mode."""
    path = folder / f'job{ranks}.py'
    base = ROOT / 'configs/digits/resnet20_stepnet_digits.py'
    loader = dict(num_workers=0, persistent_workers=False)
    path.write_text(f'''
_base_ = [{str(base)!r}]
custom_imports = dict(imports=['tests.test_tools.rank_hooks'])
custom_hooks = [{hook!r}, dict(type='mmstepnet.StiffnessHook', figures=False)]
model = dict(backbone=dict(norm_eval=True))
train_dataloader = dict(
    batch_size={GLOBAL_BATCH // ranks}, dataset=dict(pipeline=[
        dict(type='Resize', scale=32), dict(type='PackInputs')]),
    **{loader!r})
val_dataloader = dict(
    batch_size=8, dataset=dict(indices={IMAGES}), **{loader!r})
optim_wrapper = dict(optimizer=dict(lr=0.01))
param_scheduler = None
train_cfg = dict(by_epoch=False, max_iters={ITERATIONS},
                 val_interval={ITERATIONS}, _delete_=True)
log_processor = dict(by_epoch=False)
default_hooks = dict(checkpoint=dict(
    by_epoch=False, interval=3, max_keep_ckpts=1), logger=dict(interval=1))
''')
    return path


def launch(config, ranks, work_dir):
    return run_program('bash', 'tools/dist_train.sh', config, ranks,
                       '--work-dir', work_dir, check=False,
                       PYTHONPATH=str(ROOT))


def test_group_ends_with_the_job():
    """No thread of gloo's is left to meet the interpreter's end."""
    _, (output, ) = run_ranks(1, '-c', '''
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from mmengine.config import Config
from mmstepnet.jobs.job import process_group

def threads():
    tasks = Path('/proc/self/task').glob('*/comm')
    return sum('gloo' in task.read_text() for task in tasks)

def train():
    model = DistributedDataParallel(torch.nn.Linear(3, 8))
    model.itself = model  # a cycle, as in a runner
    model(torch.randn(4, 3)).sum().backward()
    return threads()

with process_group(Config(dict(launcher='pytorch'))):
    during = train()
print('threads', during, threads(), torch.distributed.is_initialized())
''')
    found = re.search(r'threads (\d+) (\d+) (\w+)', output)
    assert found, output
    during, after, initialized = found.groups()
    if during == '0':
        pytest.skip('this PyTorch does not name gloo\'s threads')
    assert (after, initialized) == ('0', 'False')


def plain(done):
    """Output of a job, without colours."""
    return re.sub(r'\x1b\[[0-9;]*m', '', done.stdout + done.stderr)


def test_same_curve_and_evaluation(tmp_path):
    found = {}
    for ranks in (1, 2):
        out = tmp_path / f'losses{ranks}.json'
        config = write_config(
            tmp_path, ranks, dict(type='GlobalLossHook', path=str(out)))
        work_dir = tmp_path / f'work{ranks}'
        if ranks == 1:
            call_tool(load_tool('train.py'), config, '--work-dir', work_dir)
        else:
            done = launch(config, ranks, work_dir)
            assert done.returncode == 0, done.stderr[-4000:]
        log, = work_dir.glob('*/*.log')
        line = re.findall(r'Iter\(val\) .*accuracy/top1.*',
                          log.read_text())[-1]
        scalars = dict(re.findall(r'(\S+): (-?\d[\d.e+-]*)', line))
        scalars = {key: value for key, value in scalars.items()
                   if 'time' not in key}
        found[ranks] = json.loads(out.read_text()), scalars
    alone, evaluated = found[1]
    assert len(alone['losses']) == ITERATIONS
    assert len(set(alone['losses'])) == ITERATIONS
    assert any('tns' in key for key in evaluated), evaluated
    curve, scalars = found[2]
    assert curve['losses'] == pytest.approx(alone['losses'], abs=1e-4)
    assert curve['norm'] == pytest.approx(alone['norm'], rel=1e-5)
    assert scalars.keys() == evaluated.keys()
    for key, value in evaluated.items():
        assert float(scalars[key]) == pytest.approx(
            float(value), rel=1e-3), key


def test_dying_rank(tmp_path):
    """The job ends within a minute and leaves whole checkpoints."""
    config = write_config(
        tmp_path, 2, dict(type='DyingRankHook', rank=1, iteration=8))
    begun = time.monotonic()
    done = launch(config, 2, tmp_path / 'work')
    elapsed = time.monotonic() - begun
    assert done.returncode != 0
    text = plain(done)
    assert 'SIGKILL' in text or 'Signal 9' in text
    iterations = [
        int(n) for n in re.findall(r'Iter\(train\) \[ *(\d+)/', text)]
    assert max(iterations) == 8
    files = list((tmp_path / 'work').glob('*.pth'))
    assert [file.name for file in files] == ['iter_6.pth']
    assert torch.load(files[0], weights_only=False)['meta']['iter'] == 6
    last = files[0].stat().st_mtime
    # From the last checkpoint on, so that start-up does not count.
    assert time.time() - last < 60, elapsed
