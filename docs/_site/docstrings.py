"""Docstrings for the site: Sphinx's roles as code, formulas as MathML."""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

ROLE = re.compile(r':(?!math)[a-z]+:`~?(?:[^`<]*<)?([^`>]*)>?`')
EXAMPLE = re.compile(r'^( *)Example:$', re.MULTILINE)
INLINE = re.compile(r':math:`([^`]+)`')
DISPLAY = re.compile(
    r'^( *)\.\. math::[ ]?(.*\n(?:\1 +.*\n|\s*\n)*)', re.MULTILINE
)


def last_name(role: re.Match) -> str:
    """Name without the modules it stands in, as code."""
    return f'`{role[1].rpartition(".")[2]}`'


def inline(formula: re.Match) -> str:
    """A formula as HTML; Markdown takes a bare ``math`` for a block."""
    return f'<span>{convert(" ".join(formula[1].split()))}</span>'


def display(formula: re.Match) -> str:
    """A formula as HTML, one element for each of its lines."""
    indent = formula[1]
    text = textwrap.dedent(formula[2]).strip()
    lines = [
        convert(line.replace('&', '').strip(), display='block')
        for line in text.split('\\\\\n')
    ]
    scrolls = '<div style="overflow-x: auto">'  # wider than a phone's page
    return f'\n{indent}{scrolls}{"".join(lines)}</div>\n\n'


def translate(text: str) -> str:
    """What Markdown understands of a docstring."""
    text = DISPLAY.sub(display, f'{text}\n')
    text = EXAMPLE.sub(r'\1Examples:', text)
    text = INLINE.sub(inline, text)
    return ROLE.sub(last_name, text).rstrip()


class Docstrings(griffe.Extension):
    """Translates each docstring once it was read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = translate(obj.docstring.value)
