"""Steps put into every model of timm and of torchvision's classifiers.

    python -m tests.zoo.inserted_steps --out inserted.tsv
    python -m tests.zoo.inserted_steps --out inserted.tsv --summary

On the meta device, so that nothing is computed. One row a model, written as it
comes; a second call goes on where the first ended. The summary counts models
and, by the kind of their blocks, those without any.
"""

import argparse
import re
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import timm
import torch
import torchvision

from mmstepnet import ResidualStep, find_steps, insert_steps
from mmstepnet.steps.finding import FIRST
from mmstepnet.steps.own_forward import OwnForwardBlock

SIZES = {'inception_v3': 299}


def build(name: str) -> tuple:
    """A model, the module that defines it, and images that it takes."""
    library, _, name = name.partition(':')
    if library == 'timm':
        model = timm.create_model(name)
        size = model.pretrained_cfg.get('input_size', (3, 224, 224))
    else:
        model = torchvision.models.get_model(name, weights=None)
        size = (3, *(2 * [SIZES.get(name, 224)]))
    module = type(model).__module__.rpartition('.')[2]
    return model.eval(), f'{library}.{module}', torch.rand(2, *size)


def row(name: str) -> list:
    """Name, family, outcome, blocks, steps, and blocks without description."""
    with torch.device('meta'):
        try:
            model, family, images = build(name)
        except Exception as error:
            return [name, '', 'not built', 0, 0, 0, _line(error)]
    try:
        names = insert_steps(model, example=images)
    except ValueError as error:
        states = sum(s.left_out in (None, FIRST)
                     for s in find_steps(model, images))
        outcome = 'refused' if states else 'none'
        return [name, family, outcome, 0, states, 0, _line(error)]
    except Exception:
        return [name, family, 'failed', 0, 0, 0,
                traceback.format_exc(limit=-1).replace('\n', ' ')]
    own = sum(isinstance(m, OwnForwardBlock) for m in model.modules())
    steps = sum(isinstance(m, ResidualStep) for m in model.modules())
    return [name, family, 'steps', len(names), steps, own, '']


def _line(error: Exception) -> str:
    return re.sub(r'\s+', ' ', f'{type(error).__name__}: {error}')[:400]


def summarise(rows: list[list[str]]) -> str:
    """Counts, and the families without steps."""
    outcomes = Counter(row[2] for row in rows)
    lines = [f'{len(rows)} models: ' + ', '.join(
        f'{n} {what}' for what, n in outcomes.most_common())]
    own = sum(row[2] == 'steps' and int(row[5]) > 0 for row in rows)
    lines.append(f'{own} with blocks that have no description')
    by_family = defaultdict(Counter)
    for row in rows:
        if row[2] != 'steps':
            by_family[row[2]][row[1] or row[0]] += 1
    for outcome, families in by_family.items():
        lines.append(f'{outcome}: ' + ', '.join(
            f'{family} {n}' for family, n in families.most_common()))
    return '\n'.join(lines)


def main() -> None:
    """Write the table, or its summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--stride', type=int, default=1,
                        help='only every so many-th model')
    parser.add_argument('--summary', action='store_true')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    rows = [line.split('\t') for line in args.out.read_text(
        'utf-8').splitlines()] if args.out.exists() else []
    if args.summary:
        print(summarise(rows))
        return
    done = {row[0] for row in rows}
    names = [f'timm:{n}' for n in timm.list_models()] + [
        f'torchvision:{n}' for n in torchvision.models.list_models(
            torchvision.models)]
    names = names[::args.stride]
    for k, name in enumerate(names):
        if name not in done:
            with args.out.open('a', encoding='utf-8') as file:
                file.write('\t'.join(map(str, row(name))) + '\n')
            print(f'{k + 1}/{len(names)} {name}', flush=True)


if __name__ == '__main__':
    main()
