"""Prints the site's page of commands, as their own ``--help`` tells them.

It imports no more than the programs do for their help, which is little.
"""

import io
import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
HEAD = """# Commands and their options

Every command of a user, with its options, as `--help` tells them. Run them from the root of a checkout; `python -m mmstepnet` runs anywhere.

```bash
python -m mmstepnet stiffness timm:resnet50 --images PICTURES
python tools/train.py CONFIG --resume
```

A name in capital letters is yours to replace.

"""  # noqa: E501
PARTS = {
    'Stiffness of any network': ['mmstepnet/__main__.py'],
    'Configs of OpenMMLab': [
        'tools/train.py',
        'tools/test.py',
        'tools/analysis_tools/*.py',
        'tools/export_onnx.py',
        'tools/publish_model.py',
        'tools/dataset_converters/*.py',
    ],
}
SCRIPTS = (
    'quickstart',
    'setup_env',
    'run_tests',
    'dist_train',
    'dist_test',
    'slurm_train',
    'slurm_test',
)


def help_of(path: Path, *command: str) -> Iterator[str]:
    """A section for a program, and one for each of its commands."""
    name = path.relative_to(ROOT).as_posix()
    module = (
        name.removesuffix('.py').replace('/', '.').removesuffix('.__main__')
    )
    tool = name.startswith('tools/')
    program = f'python {name}' if tool else f'python -m {module}'
    with (
        patch.object(sys, 'argv', [program, *command, '--help']),
        redirect_stdout(io.StringIO()) as out,
        suppress(SystemExit),
    ):
        if tool:
            runpy.run_path(str(path), run_name='__main__')
        else:
            runpy.run_module(module, run_name='__main__')
    # Some imports print before.
    text = out.getvalue()
    text = text[text.index('usage: ') :]
    yield (f'### `{" ".join([program, *command])}`\n\n```text\n{text}```\n\n')
    for inner in re.findall(r'^ {4}(\w+)  +\w', text, re.MULTILINE):
        yield from help_of(path, inner)


def write() -> str:
    """The page."""
    parts = [HEAD]
    for title, patterns in PARTS.items():
        parts.append(f'## {title}\n\n')
        for pattern in patterns:
            for path in sorted(ROOT.glob(pattern)):
                text = path.read_text('utf-8')
                if path.stem == '__main__' or (
                    'ArgumentParser(' in text and '__main__' in text
                ):
                    parts += help_of(path)
    parts.append('## Scripts\n\n| command | what it does |\n|---|---|\n')
    for name in SCRIPTS:
        lines = (ROOT / 'tools' / f'{name}.sh').read_text().splitlines()[1:]
        text = ' '.join(
            line.strip('# ')
            for line in lines[
                : next(
                    k
                    for k, line in enumerate(lines)
                    if not line.startswith('#')
                )
            ]
        )
        parts.append(f'| `bash tools/{name}.sh` | {text} |\n')
    return ''.join(parts)


if __name__ == '__main__':
    # Defaults and lines as on any machine.
    os.environ.update(CUDA_VISIBLE_DEVICES='', COLUMNS='80')
    sys.path.insert(0, str(ROOT))
    print(write().strip())
