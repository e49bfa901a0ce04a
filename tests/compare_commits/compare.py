"""Two checkouts on one machine, compared: bit by bit, else by how much.

    python tests/compare_commits/compare.py BEFORE AFTER [--double]

BEFORE and AFTER are checkouts, or files that collect.py wrote. --double
compares in float64, where orders of summation and BN over a few values do not
hide what else differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

COLLECT = Path(__file__).with_name('collect.py')


def collect(checkout: Path, folder: Path, double: bool) -> dict:
    """What a checkout computes; a file is read."""
    if checkout.is_file():
        return torch.load(checkout, weights_only=True)
    out = Path(tempfile.mkdtemp(dir=folder)) / 'found.pt'
    subprocess.run(
        [sys.executable, str(COLLECT), str(out), *['--double'] * double],
        cwd=checkout, check=True,
        env={**os.environ, 'PYTHONPATH': str(checkout.resolve())})
    return torch.load(out, weights_only=True)


def difference(before: object, after: object) -> str | None:
    """None where they are equal to the bit, else what differs."""
    if not isinstance(before, torch.Tensor):
        if isinstance(before, list) and before and isinstance(
                before[0], float):
            return difference(torch.tensor(before), torch.tensor(after))
        return None if before == after else 'other text'
    if before.shape != after.shape:
        return f'shape {tuple(after.shape)} instead of {tuple(before.shape)}'
    if torch.equal(before, after):
        return None
    error = (after.double() - before.double()).norm()
    return f'{error / before.double().norm().clamp(min=1e-30):.1e} relative'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('before', type=Path)
    parser.add_argument('after', type=Path)
    parser.add_argument('--double', action='store_true')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before, after = (collect(path, Path(folder), args.double)
                         for path in (args.before, args.after))
    differ = 0
    for part in before:
        keys = before[part].keys() | after[part].keys()
        found = {}
        for key in sorted(keys):
            if key not in before[part] or key not in after[part]:
                found[key] = 'only ' + ('before' if key in before[part]
                                        else 'after')
            elif (text := difference(before[part][key],
                                     after[part][key])) is not None:
                found[key] = text
        print(f'{part}: {len(keys) - len(found)} of {len(keys)} equal to the '
              'bit')
        for key, text in found.items():
            print(f'  {key}: {text}')
        differ += len(found)
    return int(differ > 0)


if __name__ == '__main__':
    sys.exit(main())
