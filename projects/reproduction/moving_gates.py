"""Gates that move: trained networks, and whether their gates adapt.

    python -m projects.reproduction.moving_gates run --seeds 3
    python -m projects.reproduction.moving_gates table

PLAN_MOVING_GATES.md has the questions, the rows and the rules.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner, load_checkpoint

from mmstepnet.files import write_whole
from mmstepnet.stiffness import measure_gates

from .comparisons import LEVEL, interval
from .report import by_seed, markdown
from .rows import RESULTS, read_rows
from .runner import WORK_DIR, run
from .tables import ROOT, Cell, read_tables

ROWS = {
    name: f'resnet20_{config}_cifar10-50k'
    for name, config in (
        ('frozen', 'stepnet-frozen'),
        ('StepNet', 'stepnet'),
        ('StepNet, ×10', 'stepnet-lr10'),
        ('StepNet, IEBN as cited', 'stepnet-iebn-cited'),
    )
}
PLANNED = len(ROWS) - 1
"""Comparisons of the plan: each row with the frozen one."""

PAIRS = [
    *((name, 'frozen') for name in ROWS if name != 'frozen'),
    ('StepNet, ×10', 'StepNet'),
]
"""Those of the plan, and one that was not planned."""

KEPT = RESULTS / 'moving_gates'
MARGIN = 0.5
"""Points by which a replaced gate changes the accuracy of an adaptive one."""

COLUMNS = (
    'over images',
    'over channels',
    'over steps',
    'accuracy',
    'channel means',
    'one number',
)


@torch.no_grad()
def measure(cell: Cell, checkpoint: Path) -> dict[str, float]:
    """The plan's measures of one trained network, by ``COLUMNS``."""
    cfg = Config.fromfile(cell.config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(
        {**cfg.model, 'data_preprocessor': cfg.data_preprocessor}
    )
    load_checkpoint(model, str(checkpoint), map_location='cpu', strict=True)
    model.eval()
    images, labels = [], []
    for batch in Runner.build_dataloader(cfg.test_dataloader):
        data = model.data_preprocessor(batch)
        images.append(data['inputs'])
        labels += [sample.gt_label for sample in data['data_samples']]
    truth = torch.cat(labels)[::5]  # 200 images of each class
    batches = torch.cat(images)[::5].split(200)

    def accuracy(network: torch.nn.Module) -> float:
        logits = torch.cat([network(batch) for batch in batches])
        return 100 * float((logits.argmax(1) == truth).float().mean())

    found = measure_gates(model, batches, accuracy)
    return dict(
        zip(
            COLUMNS,
            (
                float(np.mean(list(found.over_images.values()))),
                float(np.mean(list(found.over_channels.values()))),
                found.over_blocks,
                *found.results.values(),
            ),
        )
    )


def run_all(seeds: range, work_dir: Path) -> None:
    """Train, test and measure each row of each seed, unless it is there."""
    cells = {
        cell.name: cell
        for table in read_tables(ROOT).values()
        for cell in table
    }
    for seed in seeds:
        for config in ROWS.values():
            print(f'{config}, seed {seed}', flush=True)
            run(cells[config], seed, work_dir, KEPT)
            path = KEPT / config / f'gates_{seed}.json'
            if not path.is_file():
                found = measure(
                    cells[config],
                    work_dir / config / f'seed_{seed}' / 'epoch_5.pth',
                )
                write_whole(path, json.dumps(found, indent=1))
            print(path.read_text(), flush=True)


def adaptive(drops: list[float]) -> str:
    """The plan's word for what replaced gates do to the accuracy."""
    if min(drops) >= MARGIN:
        return 'adaptive'
    return 'a scale' if max(map(abs, drops)) < MARGIN else 'undecided'


def table() -> str:
    """Accuracies, mean and deviations of Δt, both verdicts."""
    lines, compared = [], []
    accuracy, steps = (
        {
            name: by_seed(read_rows(config, KEPT), quantity)
            for name, config in ROWS.items()
        }
        for quantity in ('Accuracy', 'Δt')
    )
    for name, config in ROWS.items():
        seeds = sorted(accuracy[name])
        gates = [
            json.loads((KEPT / config / f'gates_{seed}.json').read_text())
            for seed in seeds
        ]
        for seed, found in zip(seeds, gates):
            lines.append(
                [
                    name,
                    str(seed),
                    f'{accuracy[name][seed]:.2f}',
                    f'{steps[name][seed]:.4f}',
                    *(f'{found[key]:.4f}' for key in COLUMNS[:3]),
                    *(f'{found[key]:.2f}' for key in COLUMNS[4:]),
                ]
            )
        if gates:
            drops = [
                found['accuracy'] - found['channel means'] for found in gates
            ]
            lines.append([name, 'verdict', adaptive(drops), *[''] * 6])
    for name, other in PAIRS:
        common = sorted(set(accuracy[name]) & set(accuracy[other]))
        if len(common) > 1:
            differences = [
                accuracy[name][seed] - accuracy[other][seed] for seed in common
            ]
            ends = [
                '{:+.2f} to {:+.2f}'.format(*interval(differences, level))
                for level in (LEVEL, LEVEL / PLANNED)
            ]
            if other != 'frozen':
                ends[1] = 'not planned'
            compared.append(
                [
                    f'{name} − {other}',
                    f'{np.mean(differences):+.2f}',
                    *ends,
                    str(len(common)),
                ]
            )
    return '\n'.join(
        [
            markdown(
                [
                    'row',
                    'seed',
                    'accuracy (%)',
                    'mean Δt',
                    *(f'Δt {key}' for key in COLUMNS[:3]),
                    *COLUMNS[4:],
                ],
                lines,
            ),
            markdown(
                [
                    'difference',
                    'points',
                    '95 % interval',
                    f'corrected for {PLANNED}',
                    'seeds',
                ],
                compared,
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'command',
        choices=['run', 'table'],
        help='make the rows, or print the table of those that are there',
    )
    parser.add_argument(
        '--seeds', type=int, default=3, help='how many. Default: %(default)s'
    )
    parser.add_argument(
        '--work-dir',
        type=Path,
        default=WORK_DIR,
        help='folder of checkpoints. Default: %(default)s',
    )
    args = parser.parse_args()
    if args.command == 'run':
        run_all(range(args.seeds), args.work_dir)
    else:
        print(table())


if __name__ == '__main__':
    main()
