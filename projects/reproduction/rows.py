"""Rows: what one config came to with one seed, a small JSON file each.

    results/CONFIG/seed_N.json

    {"config": "resnet164_se_cifar10", "seed": 0,
     "last": {"epoch": 164, "metrics": {"accuracy/top1": 94.1}},
     "best": {"epoch": 150, "metrics": {"accuracy/top1": 94.3}},
     "curves": {"loss": [[1, 1.62], ...], "accuracy/top1": [[1, 41.3], ...]},
     "stiffness": ..., "starts": ...}

``last`` is measured on the test data after all epochs. ``best`` is null where
the validation data are not the test data. ``curves`` holds pairs of epoch and
value. ``stiffness`` is what
:func:`~projects.reproduction.stiffness.summarise_stiffness` gives, null where
the config has no StiffnessHook. ``starts`` names machine, PyTorch and commit.
Rows of before version 0.4 have more keys.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from .tables import METRICS

RESULTS = Path(__file__).parent / 'results'
LOSS = 'training loss'
MEANS = {'stage': 'μ over the stage', 'all': 'μ over all blocks'}
STIFFNESS = {'tns': 'TNS', 'p_hat': '∬p̂', 'few_stiff': 'p̂ ≤ 10 %'}


def read_rows(name: str, results: Path = RESULTS) -> list[dict[str, Any]]:
    """Rows of all seeds of a config, by seed."""
    return sorted(
        (
            json.loads(path.read_text())
            for path in (results / name).glob('seed_*.json')
        ),
        key=lambda row: row['seed'],
    )


def quantities(row: dict[str, Any]) -> dict[str, float]:
    """Every number of a row by its name.

    These are its metrics after the last epoch, the training loss of that
    epoch, Δt, and of each reading of NSI what stands in ``STIFFNESS``, such
    as ``'TNS; adaptive NSI, μ over the stage'``. Fig. 3 and Fig. 9 of the
    first paper add how NSI changes from block to block, and its correlation
    with Δt.
    """
    metrics = row['last']['metrics']
    found = {
        name: metrics[m.key] * m.scale
        for name, m in METRICS.items()
        if m.key in metrics
    }
    losses = dict(row.get('curves', {}).get('loss', ()))
    if row['last']['epoch'] in losses:
        found[LOSS] = losses[row['last']['epoch']]
    return found | _stiffness(row.get('stiffness') or {})


def _stiffness(kept: dict[str, Any]) -> dict[str, float]:
    found = {}
    for key, title in STIFFNESS.items():
        values = kept.get(key)
        if not isinstance(values, dict):  # of before the other readings
            values = {} if values is None else {'adaptive': values}
        for reading, value in values.items():
            name = f'{title}; {reading} NSI'
            if key == 'few_stiff':
                found |= {} if value is None else {name: value}
            else:
                means = value if isinstance(value, dict) else {'stage': value}
                found |= {
                    f'{name}, {MEANS[mu]}': number
                    for mu, number in means.items()
                }
    if kept:
        found['Δt'] = float(np.mean(kept['step']))
        nsi, stages = np.array(kept['nsi']), np.array(kept['stages'])
        changes = np.abs(np.diff(nsi))
        for jumps, kept_changes in (
            ('', changes[np.diff(stages) == 0]),
            ('; jumps between stages, too', changes),
        ):
            mean = float(kept_changes.mean())
            found[f'change of NSI{jumps}'] = mean
            found[f'change of NSI over its mean{jumps}'] = mean / nsi.mean()
    for reading, r in first_stage(kept).items():
        found[f'−r over images; {reading} NSI'] = -np.mean(r)
    for reading, stages in kept.get('along', {}).items():
        if 'stage 1' in stages:
            found[f'−r along a trajectory; {reading} NSI'] = -stages[
                'stage 1'
            ]['mean']
    return found


def first_stage(kept: dict[str, Any]) -> dict[str, list[float]]:
    """Correlation of NSI and Δt over images, block by block, by reading.

    Args:
        kept (dict): What a row keeps of stiffness.
    """
    stages, found = kept.get('stages', ()), kept.get('correlation', {})
    if not isinstance(found, dict):  # of before the other readings
        found = {'adaptive': found}
    blocks = {
        reading: [
            r
            for r, stage in zip(values, stages)
            if stage == stages[0] and r is not None
        ]
        for reading, values in found.items()
    }
    return {reading: values for reading, values in blocks.items() if values}
