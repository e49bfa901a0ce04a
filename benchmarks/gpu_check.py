"""Check the fused step on one NVIDIA GPU, with torch and torchvision alone.

    python -m benchmarks.gpu_check --out work_dirs/gpu_check

Four parts: correctness (values and gradients of a tail and of a ResNet-50),
launches (kernels, CPU and device time of a tail, bandwidth of its passes),
modes (DDP, FSDP2, GradScaler, checkpointing, determinism, captured graphs,
what new image sizes compile), speed (ResNet-50 and Faster R-CNN beside plain
ones, SE's and the reference path's; metric-attention).

The check switches the fused path on where it is meant, whatever the default
is, and fails where the path that it names was not taken. Values are compared
without TF32. Each result is written as it comes, to OUT/gpu_check.json and
gpu_check.md; a second call goes on with what is left, and then repeats what
failed. `--budget 25` stops between two checks when 25 minutes are over. A
check that fails ends nothing; one after which CUDA no longer works starts
this program again with what is left. After a change of the code, give another
--out. `--device cpu --quick` is a dry run on small shapes, where ATen's
passes are the fused path's.

Exit status: 0 if all is well, 1 if a check failed, 3 if some are left.
"""

import argparse
import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path

import torch

from mmstepnet.files import write_whole
from mmstepnet.version import __version__

from .gpu_parts import correctness, launches, modes, speed
from .gpu_parts.common import Check, Setting, exact_values

PARTS = dict(correctness=correctness, launches=launches, modes=modes,
             speed=speed)
TIMED = 'launches', 'speed'
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
        with exact_values(part not in TIMED):
            outcome = function()
            setting.synchronize()  # or an error would be another check's
        value, target = outcome.value, outcome.target
        verdict = {None: REPORTED, True: PASSED, False: FAILED}[
            outcome.passed]
        if setting.quick and part in TIMED:
            verdict = REPORTED  # small shapes say nothing of speed
    except torch.cuda.OutOfMemoryError as error:
        value, target, verdict = str(error).split('.')[0], '', TOO_LARGE
    except Exception as error:
        traceback.print_exc()
        text = ' '.join(str(error).split())
        value, target = f'{type(error).__name__}: {text[-300:]}', ''
        verdict = FAILED
    return dict(part=part, check=name, value=value, target=target,
                verdict=verdict,
                seconds=round(time.perf_counter() - start, 1))


def works(setting: Setting) -> bool:
    """Whether the device does, after a check; a wrong access ends it."""
    try:
        setting.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


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
    parser.add_argument('--budget', type=float, metavar='MINUTES',
                        default=float('inf'),
                        help='start no check after so many minutes')
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
    end = time.monotonic() + 60 * args.budget
    device = (torch.cuda.get_device_name() if args.device == 'cuda'
              else platform.processor() or platform.machine())
    table = Table(args.out, dict(
        device=device, PyTorch=torch.__version__, mmstepnet=__version__,
        shapes='quick' if args.quick else 'real'))
    setting = Setting(args.device, args.quick)
    todo = [(part, check) for part in args.parts
            for check in PARTS[part].checks(setting)
            if not table.has(check[0])]
    todo.sort(key=lambda item: item[1][0] in table.rows)  # failed ones last
    left = len(todo)
    for k, (part, check) in enumerate(todo, 1):
        if time.monotonic() >= end:
            print(f'The budget is spent, {left} checks are left; the same '
                  'command goes on.')
            break
        row = run(part, check, setting)
        is_new = check[0] not in table.rows
        table.add(row)
        left -= 1
        print(f'{k}/{len(todo)} {part}: {row["verdict"]:8} {row["check"]}: '
              f'{row["value"]}', flush=True)
        if not works(setting):
            print('CUDA no longer works in this process.', flush=True)
            if is_new and left:  # no failed one twice
                minutes = max(0, end - time.monotonic()) / 60
                os.execv(sys.executable, [
                    sys.executable, '-m', 'benchmarks.gpu_check',
                    *sys.argv[1:], f'--budget={minutes}'])
            break
    failed = [r for r in table.rows.values() if r['verdict'] == FAILED]
    print(f'{len(table.rows)} checks, {len(failed)} failed; the table is '
          f'{table.markdown.resolve()}')
    sys.exit(1 if failed else 3 if left else 0)


if __name__ == '__main__':
    main()
