"""Results of runs: one small JSON file for each config and seed.

    {"config": "resnet164_se_cifar10", "seed": 0, "cfg_options": [],
     "last": {"epoch": 164, "metrics": {"accuracy/top1": 94.1}},
     "best": {"epoch": 150, "metrics": {"accuracy/top1": 94.3}},
     "curves": {"loss": [[1, 1.62], ...], "accuracy/top1": [[1, 41.3], ...]},
     ...}

``best`` is null where the validation data are not the test data. ``curves``
holds pairs of epoch and value: the training loss, and the metrics of every
validation. ``stiffness`` is what
:func:`~projects.reproduction.stiffness.summarise_stiffness` gives for the
test, null where the config has no StiffnessHook, ``validations`` what
:func:`~projects.reproduction.stiffness.summarise_validations` gives for the
training, and ``seconds`` what
:func:`~projects.reproduction.metric_log.logged_seconds` does; older results
have neither. ``starts`` holds what
:func:`~projects.reproduction.provenance.provenance` gives, once for each
machine, version and commit that the run was started or went on with.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmstepnet.files import write_whole

from .metafile import Figure

REQUIRED = ('config', 'seed', 'cfg_options', 'last', 'best')
FILE = re.compile(r'seed_(\d+)\.json')


def result_path(results: Path, name: str, seed: int) -> Path:
    """Where the result of a config and seed stands."""
    return results / name / f'seed_{seed}.json'


def save_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result: wholly, or not at all.

    Raises:
        ValueError: A number is not finite.
    """
    lines = []
    for key, value in result.items():
        try:
            # A line a key: whole curves would take one for each epoch.
            lines.append(f'  {json.dumps(key)}: '
                         f'{json.dumps(value, allow_nan=False)}')
        except ValueError as error:
            raise ValueError(f'{path}: {key} must hold finite numbers, got '
                             f'{value}') from error
    write_whole(path, '{\n' + ',\n'.join(lines) + '\n}\n')


def read_json(path: Path) -> Any:
    """Read a JSON file of finite numbers.

    Raises:
        ValueError: It is none.
    """
    def refuse(number: str) -> None:
        raise ValueError(f'{number} is no finite number')
    try:
        return json.loads(path.read_text(), parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f'{path} is no JSON: {error}; remove it to run it '
                         'again') from error


def load_result(path: Path,
                required: Sequence[str] = REQUIRED) -> dict[str, Any]:
    """Read a result.

    Args:
        path (Path): Its file, ``CONFIG/seed_N.json``.
        required (Sequence[str]): What it has to have. Defaults to the keys
            of every training.

    Raises:
        ValueError: The file is no result, or that of another config or seed.
    """
    result = read_json(path)
    missing = [k for k in required
               if not isinstance(result, dict) or k not in result]
    if missing:
        raise ValueError(f'{path} is no result of a run: it lacks '
                         f'{", ".join(missing)}; remove it to run it again')
    seed = FILE.fullmatch(path.name)
    if (result['config'], str(result['seed'])) != (
            path.parent.name, seed and seed[1]):
        raise ValueError(
            f'{path} holds the result of {result["config"]}, seed '
            f'{result["seed"]}; copies do not count, remove it')
    return result


def load_results(results: Path, name: str) -> list[dict[str, Any]]:
    """Read the results of all seeds of a config, by seed.

    Raises:
        ValueError: A file is damaged, or the seeds were run with different
            ``--cfg-options``, whose mean would mean nothing.
    """
    folder = results / name
    if not folder.is_dir():
        return []
    files = [p for p in folder.iterdir() if FILE.fullmatch(p.name)]
    found = sorted((load_result(p) for p in files), key=lambda r: r['seed'])
    options = {tuple(r['cfg_options']) for r in found}
    if len(options) > 1:
        raise ValueError(
            f'{folder}: seeds were run with different --cfg-options: '
            + '; '.join(' '.join(o) or 'none' for o in sorted(options))
            + '; keep each setting in its own --results folder')
    return found


def validated_on_test(found: Mapping[Any, list[dict]]) -> bool:
    """Whether rows of results were validated on the data of their test.

    Those that were not have no best epoch. Where one has, all should.
    """
    results = [r for rows in found.values() for r in rows]
    return not results or any(r['best'] is not None for r in results)


def summarise(values: Sequence[float]) -> Figure:
    """Mean and sample standard deviation (over N - 1) of the seeds.

    Which of the two deviations the paper gives, it does not say.
    """
    std = statistics.stdev(values) if len(values) > 1 else None
    return Figure(statistics.fmean(values), std)
