"""Writes docs/commands.md: every command, of its own parser."""

import argparse
import os
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'commands.md'
HEAD = """# Commands and their options

Every command, with its options, as `--help` tells them. Run them from the root of a checkout; `mmstepnet` runs anywhere.

```bash
mmstepnet stiffness timm:resnet50 --images PICTURES
python tools/train.py CONFIG --resume
```

Written by `python docs/_site/commands.py`; not edited by hand. A name in capital letters is yours to replace, and an option without a
default is off, or described by its text.

"""  # noqa: E501
PARTS = {
    'Stiffness of any network': ['mmstepnet/__main__.py'],
    'Configs of OpenMMLab': [
        'tools/train.py', 'tools/test.py', 'tools/analysis_tools/*.py',
        'tools/export_onnx.py', 'tools/publish_model.py',
        'tools/dataset_converters/*.py'],
    "The papers' experiments": ['projects/**/*.py'],
    'Speed': ['benchmarks/*.py'],
}
SCRIPTS = ('quickstart', 'setup_env', 'run_tests', 'dist_train', 'dist_test',
           'slurm_train', 'slurm_test')


class ParserBuiltError(Exception):
    """A parser, caught when it was about to parse."""


def catch(parser: argparse.ArgumentParser, *args: object, **kwargs: object):
    """In the place of ``parse_args``."""
    raise ParserBuiltError(parser)


def read_parser(path: Path) -> argparse.ArgumentParser:
    """The parser of a program."""
    name = path.relative_to(ROOT).with_suffix('')
    dotted = '.'.join(name.parts).removesuffix('.__main__')
    tool = name.parts[0] == 'tools'
    try:
        with patch.object(argparse.ArgumentParser, 'parse_args', catch), \
                patch.object(sys, 'argv', [str(path)]):
            if tool:
                runpy.run_path(str(path), run_name='__main__')
            else:
                runpy.run_module(dotted, run_name='__main__')
    except ParserBuiltError as built:
        parser, = built.args
        parser.prog = (
            f'python {name}.py' if tool else f'python -m {dotted}')
        return parser
    raise ValueError(f'{path} parses no arguments')


def cell(text: object) -> str:
    """One line that a table can hold."""
    return ' '.join(str(text).split()).replace('|', r'\|')


def default(action: argparse.Action) -> str:
    """What it is without the option, where its text does not say so."""
    value = action.default
    if (value is None or value is False or value in (argparse.SUPPRESS, [])
            or 'Default' in (action.help or '')):
        return ''
    if isinstance(value, Path) and value.is_relative_to(ROOT):
        value = value.relative_to(ROOT)
    return f"`{' '.join(map(str, value))}`" if isinstance(
        value, (list, tuple)) else f'`{value}`'


def describe(parser: argparse.ArgumentParser, name: str,
             text: str) -> Iterator[str]:
    """A section for a command, and one for each of its own commands."""
    yield f'### `{name}`\n\n{text}\n\n'
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {a.dest: a.help for a in action._choices_actions}
            for command, inner in action.choices.items():
                yield from describe(inner, f'{name} {command}', sentence(
                    told.get(command) or inner.description))
        elif not isinstance(action, argparse._HelpAction):
            value = action.metavar or (action.dest.upper() if
                                       action.nargs != 0 else '')
            value = ' '.join(value) if isinstance(value, tuple) else value
            if action.choices:
                value = '{' + ','.join(map(str, action.choices)) + '}'
            shown = action.option_strings[-1:] + [value] * (
                action.nargs != 0 or not action.option_strings)
            text = cell((action.help or '').replace('%(default)s', ''))
            rows.append(f"| `{cell(' '.join(filter(None, shown)))}` | {text} "
                        f'| {default(action)} |\n')
    if rows:
        yield '| argument | what it does | default |\n|---|---|---|\n'
        yield from [*rows, '\n']


def sentence(text: str | None) -> str:
    """The first sentence, as one."""
    first = re.split(r'(?<=[.:])\s', ' '.join((text or '').split()))[0]
    return f'{first[:1].upper()}{first[1:].rstrip(".:")}.' if first else ''


def write() -> str:
    """The page."""
    parts = [HEAD]
    for title, patterns in PARTS.items():
        parts.append(f'## {title}\n\n')
        for pattern in patterns:
            for path in sorted(ROOT.glob(pattern)):
                name = path.relative_to(ROOT).as_posix()
                text = path.read_text('utf-8')
                if '__main__' not in text + name or (
                        'arse' not in text and 'cli' not in text):
                    continue  # a module, or a command without options
                parser = read_parser(path)
                parts += describe(parser, parser.prog, sentence(
                    parser.description))
    parts.append('## Scripts\n\n| command | what it does |\n|---|---|\n')
    for name in SCRIPTS:
        lines = (ROOT / 'tools' / f'{name}.sh').read_text().splitlines()[1:]
        text = ' '.join(line.strip('# ') for line in lines[:next(
            k for k, line in enumerate(lines) if not line.startswith('#'))])
        parts.append(f'| `bash tools/{name}.sh` | {cell(text)} |\n')
    return ''.join(parts)


if __name__ == '__main__':
    os.environ['CUDA_VISIBLE_DEVICES'] = ''  # defaults as on any machine
    sys.path.insert(0, str(ROOT))
    page = Path(sys.argv[1]) if sys.argv[1:] else PAGE
    page.write_text(write().strip() + '\n', 'utf-8')
