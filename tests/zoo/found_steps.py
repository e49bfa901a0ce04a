"""How many residual steps are found in every model of timm.

    python -m tests.zoo.found_steps --stride 5 --out found.md

On the meta device, so that nothing is computed. One row a model: steps that
are recorded, stages, and how many sums are left out, by reason.
"""

import argparse
from collections import Counter
from pathlib import Path

import timm
import torch

from mmstepnet import find_steps


def row(name: str) -> str:
    """One row of the table."""
    with torch.device('meta'):
        model = timm.create_model(name).eval()
        size = model.pretrained_cfg.get('input_size', (3, 224, 224))
        steps = find_steps(model, torch.rand(2, *size))
    recorded = [step for step in steps if not step.left_out]
    reasons = Counter(step.left_out for step in steps if step.left_out)
    left_out = '; '.join(f'{n} {reason}' for reason, n in reasons.items())
    return (f'| {name} | {type(model).__module__.rpartition(".")[2]} | '
            f'{len(recorded)} | {len({s.stage for s in recorded})} | '
            f'{left_out} |')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--stride', type=int, default=1)
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args()
    rows = ['| model | module | steps | stages | left out |',
            '|---|---|---|---|---|']
    rows += [row(name) for name in timm.list_models()[::args.stride]]
    args.out.write_text('\n'.join(rows) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
