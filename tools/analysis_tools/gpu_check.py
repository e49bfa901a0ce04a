"""Check the fused step on one NVIDIA GPU, with torch and torchvision alone.

    python tools/analysis_tools/gpu_check.py --out work_dirs/gpu_check

Three parts: correctness (values, gradients, modes), launches (kernels and
time of a tail, bandwidth of its passes, metric-attention), speed (ResNet-50
and Faster R-CNN over plain ones). Each result is written as it comes, to
OUT/gpu_check.json and gpu_check.md; a second call repeats what did not pass
and goes on with the rest. A check fails where the path that it names was not
taken. `--device cpu --quick` is a dry run on small shapes.
"""

import argparse
import json
import platform
import sys
import time
import traceback
from pathlib import Path

import torch
from gpu_parts import correctness, launches, speed
from gpu_parts.common import Check, Setting

from mmstepnet.files import write_whole
from mmstepnet.steps import choice
from mmstepnet.version import __version__

PARTS = dict(correctness=correctness, launches=launches, speed=speed)
FAILED, PASSED, REPORTED, TOO_LARGE = (
    'fails', 'passes', 'reported', 'does not fit')


class Table:
    """The results so far, in a file.

    Args:
        folder (Path): Gets ``gpu_check.json`` and ``gpu_check.md``.
        machine (dict): What they are measured on.

    Raises:
        ValueError: The folder has results of another machine or version.
    """

    def __init__(self, folder: Path, machine: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.json = folder / 'gpu_check.json'
        self.markdown = folder / 'gpu_check.md'
        self.machine = machine
        self.rows = {}
        if self.json.is_file():
            found = json.loads(self.json.read_text())
            if found['machine'] != machine:
                raise ValueError(
                    f'{self.json} is of {found["machine"]}, this is '
                    f'{machine}; give another --out')
            self.rows = {row['check']: row for row in found['rows']}

    def has(self, name: str) -> bool:
        """Whether a check need not be made again."""
        return self.rows.get(name, {}).get('verdict', FAILED) != FAILED

    def add(self, row: dict) -> None:
        """Note a result and write both files."""
        self.rows[row['check']] = row
        rows = list(self.rows.values())
        write_whole(self.json, json.dumps(
            dict(machine=self.machine, rows=rows), indent=1) + '\n')
        write_whole(self.markdown, self._text(rows))

    def _text(self, rows: list[dict]) -> str:
        machine = ', '.join(f'{k} {v}' for k, v in self.machine.items())
        lines = [f'Measured with {machine}.', '',
                 '| check | found | target | verdict |', '|---|---|---|---|']
        lines += ['| ' + ' | '.join(
            str(row[key]).replace('|', '\\|')
            for key in ('check', 'value', 'target', 'verdict')) + ' |'
            for row in rows]
        return '\n'.join(lines) + '\n'


def run(part: str, check: Check, setting: Setting) -> dict:
    """Make one check; whatever it raises is its result."""
    name, function = check
    start = time.perf_counter()
    try:
        outcome = function()
        value, target = outcome.value, outcome.target
        verdict = {None: REPORTED, True: PASSED, False: FAILED}[
            outcome.passed]
        if setting.quick and part != 'correctness':
            verdict = REPORTED  # small shapes say nothing of speed
    except torch.OutOfMemoryError as error:
        value, target, verdict = str(error).split('.')[0], '', TOO_LARGE
    except Exception as error:
        traceback.print_exc()
        text = ' '.join(str(error).split())
        value, target = f'{type(error).__name__}: {text[-300:]}', ''
        verdict = FAILED
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return dict(part=part, check=name, value=value, target=target,
                verdict=verdict,
                seconds=round(time.perf_counter() - start, 1))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parts', nargs='*', metavar='PART', default=PARTS,
                        help=f'{", ".join(PARTS)}. Default: all of them')
    parser.add_argument('--out', type=Path,
                        default=Path('work_dirs/gpu_check'))
    parser.add_argument('--device', default='cuda', choices=['cuda', 'cpu'])
    parser.add_argument('--quick', action='store_true',
                        help='small shapes and few rounds')
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f'PART must be of {", ".join(PARTS)}, got '
                     f'{", ".join(sorted(unknown))}')
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('there is no NVIDIA GPU that PyTorch can use here; '
                     '--device cpu --quick is a dry run without one')
    return args


def main() -> None:
    args = parse_args()
    device = (torch.cuda.get_device_name() if args.device == 'cuda'
              else platform.processor() or platform.machine())
    table = Table(args.out, dict(
        device=device, PyTorch=torch.__version__, mmstepnet=__version__,
        shapes='quick' if args.quick else 'real'))
    setting = Setting(args.device, args.quick)
    if args.device == 'cpu':
        choice.SMALLEST = 0  # small maps are not fused there otherwise
    for part in args.parts:
        checks = [c for c in PARTS[part].checks(setting)
                  if not table.has(c[0])]
        for k, check in enumerate(checks, 1):
            row = run(part, check, setting)
            table.add(row)
            print(f'{part} {k}/{len(checks)}: {row["verdict"]:8} '
                  f'{row["check"]}: {row["value"]}', flush=True)
    failed = [r for r in table.rows.values() if r['verdict'] == FAILED]
    print(f'{len(table.rows)} checks, {len(failed)} failed; the table is '
          f'{table.markdown.resolve()}')
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
