"""What a network returns while it is recorded, and what it returns else.

    python -m tests.zoo.recorded_outputs --out recorded.tsv
    python -m tests.zoo.recorded_outputs --out recorded.tsv --summary

Of all families in ``tests/test_steps/families.py`` whose library is
installed: as they are, with steps that were moved off their start, with the
fused step off and on, and each of them also with every block in a wrapper or
under what other libraries set on it. One row a case, written as it comes; a
second call goes on where the first ended. The last two columns are the largest
difference over the largest output, and how many samples were recorded or why
none was. It must be 0, but where the fused step is on.
"""

import argparse
import copy
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel

from mmstepnet import TrajectoryRecorder, find_steps, insert_steps, steps
from mmstepnet.steps.finding import FIRST
from tests.test_steps import families
from tests.test_steps.insertion import outputs, perturb, steps_of

LIBRARIES = dict(
    torchvision=families.torchvision_families, timm=families.timm_families,
    transformers=families.transformers_families,
    mmpretrain=families.openmmlab_families)
KINDS = 'plain', 'steps', 'fused'
CPU = torch.device('cpu')
BLOCKS: dict[str, Callable] = dict(
    compiled=lambda block: torch.compile(block, backend='eager'),
    checkpoint_wrapper=checkpoint_wrapper,
    FSDP1=lambda block: FullyShardedDataParallel(
        block, device_id=CPU, use_orig_params=True))


def wrap(model: nn.Module, how: str, blocks: list[str]) -> nn.Module:
    """A model whose blocks stand in a wrapper, or the like."""
    if how == 'DDP':
        return nn.parallel.DistributedDataParallel(model)
    if how == 'accelerate':
        return import_module('accelerate').cpu_offload(
            model, execution_device=CPU,
            preload_module_classes=['MultiheadAttention'])
    if how == 'mmengine':
        import_module('mmengine.runner.activation_checkpointing'
                      ).turn_on_activation_checkpointing(model, blocks)
    if how in BLOCKS:
        for name in blocks:
            parent, _, key = name.rpartition('.')
            owner = model.get_submodule(parent)
            owner._modules[key] = BLOCKS[how](owner._modules[key])
    return model


def compare(family: families.Family, kind: str, how: str) -> tuple[str, str]:
    """Largest difference of the outputs, and how many samples were seen."""
    torch.manual_seed(0)
    model, inputs = perturb(family.build()), family.inputs()
    model.eval()
    args, named = ((), inputs) if isinstance(inputs, dict) else ((inputs, ),
                                                                 {})
    found = [s.block for s in find_steps(model, *args, **named)
             if s.block and s.left_out in (None, FIRST)]
    if kind != 'plain':
        found = insert_steps(
            model, **{'example': inputs, **dict(family.options)})
        for step in steps_of(model).values():
            perturb(step.attention)
    torch._dynamo.reset()
    model = wrap(model, how, list(dict.fromkeys(found)))
    with steps.fused(kind == 'fused'):
        wanted = copy.deepcopy(outputs_of(model, inputs))
        recorder = TrajectoryRecorder(model)
        seen = ''
        recorder.start()
        try:
            recorded = outputs_of(model, inputs)
        except ValueError as error:  # there is nothing to record
            seen, recorded = _line(error)[:100], outputs_of(model, inputs)
        finally:
            recorder.stop()
        again = outputs_of(model, inputs)
    assert len(wanted) == len(recorded) == len(again) > 0
    assert all(map(torch.equal, again, wanted)), 'two passes differ'
    worst = max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
                for a, b in zip(recorded, wanted))
    return f'{worst:.1e}' if worst else '0', seen or str(len(recorder))


def outputs_of(model: nn.Module, inputs: object) -> list[torch.Tensor]:
    """Detached outputs, with gradients, so that checkpoints are made."""
    return [t.detach().float() for t in outputs(model, inputs)]


def cases() -> Iterator[tuple]:
    """Library, family, kind and wrapper."""
    hows = ['none', *BLOCKS, 'DDP', *(name for name in (
        'accelerate', 'mmengine') if find_spec(name))]
    for library, make in LIBRARIES.items():
        if find_spec(library):
            for name, family in make().items():
                for how in hows if family.recorded else ():
                    for kind in KINDS:
                        yield (library, name, how, kind), family


def _line(error: Exception) -> str:
    return re.sub(r'\s+', ' ', f'{type(error).__name__}: {error}')


def summarise(rows: list[list[str]]) -> str:
    """Counts by wrapper and kind, and all rows that are not as they must."""
    def outcome(row: list[str]) -> str:
        number = re.fullmatch(r'[\d.e-]+', row[4])
        if not number:
            return 'failed'
        worst = float(row[4])
        return 'equal' if worst == 0 else 'within 1e-4' if (
            row[3] == 'fused' and worst < 1e-4) else 'differs'

    counts = Counter((row[2], row[3], outcome(row)) for row in rows)
    lines = [f'{how}, {kind}: {n} {what}'
             for (how, kind, what), n in sorted(counts.items())]
    return '\n'.join([*lines, *('\t'.join(row) for row in rows if outcome(
        row) in ('failed', 'differs'))])


def main() -> None:
    """Write the table, or its summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--stride', type=int, default=1,
                        help='only every so many-th case')
    parser.add_argument('--only', default='', help='part of a case')
    parser.add_argument('--summary', action='store_true')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    rows = [line.split('\t') for line in args.out.read_text(
        'utf-8').splitlines()] if args.out.exists() else []
    if args.summary:
        print(summarise(rows))
        return
    done = {tuple(row[:4]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group('gloo', f'file://{folder}/store', rank=0,
                                world_size=1)
        for case, family in list(cases())[::args.stride]:
            if case in done or args.only not in ' '.join(case):
                continue
            try:
                found = compare(family, *case[:1:-1])
            except Exception as error:
                found = _line(error)[:300], ''
            with args.out.open('a', encoding='utf-8') as file:
                file.write('\t'.join((*case, *found)) + '\n')
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
