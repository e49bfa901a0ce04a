"""The common parts of all figures: data, colours, axes, the theme."""

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

COLORS = (
    '#2f5fd0',
    '#e07a1f',
    '#1f9d73',
    '#c2417c',
    '#7d55c7',
    '#b3261e',
    '#0f8fb3',
    '#8a6d1c',
    '#5b6b7b',
    '#6fa31d',
)

SMALL_GAP = 60
"""Pixels between the small charts of a facet, where their axis stands."""


def chart(**columns: Iterable) -> alt.Chart:
    """A chart of these columns, all of one length.

    Altair gets one row of lists, which Vega takes apart: a third of the bytes
    that rows need, and never too many rows. Texts are listed once.
    """
    row, texts = {}, {}
    for name, values in columns.items():
        values = np.asarray(values)
        if values.dtype.kind == 'U':
            kinds, values = np.unique(values, return_inverse=True)
            texts[name] = f'{json.dumps(kinds.tolist())}[datum.{name}]'
        if values.dtype.kind == 'f':
            # All digits of what is recorded, and no more: an axis may begin
            # anywhere, so that the last ones are what it shows.
            short = values.astype(np.float32).astype(np.str_)
            row[name] = short.astype(float).tolist()
        else:
            row[name] = values.tolist()
    return (
        alt.Chart(alt.InlineData(values=[row]))
        .transform_flatten([*row])
        .transform_calculate(**texts)
    )


def block_names(blocks: Sequence[str]) -> list[str]:
    """Names of blocks without the modules that all of them stand in.

    ``backbone.stages.0.1`` and ``backbone.stages.1.1`` give ``stages.0.1``
    and ``stages.1.1``: a number alone is no name.
    """
    parts = [block.split('.') for block in blocks]
    shared = 0
    while len({tuple(p[: shared + 1]) for p in parts}) == 1 < len(blocks):
        shared += 1
    while shared and any(not p[shared:] or p[shared].isdigit() for p in parts):
        shared -= 1
    return ['.'.join(p[shared:]) for p in parts]


def block_axis(blocks: Sequence[str], column: str = 'at') -> alt.X:
    """An axis along a column of the places of blocks, from 1.

    Every block is named, whole; on a narrow page as many as fit.
    """
    names = json.dumps(block_names(blocks))
    return alt.X(
        f'{column}:Q',
        title='recorded block',
        scale=alt.Scale(domain=[0.5, len(blocks) + 0.5], nice=False),
        axis=alt.Axis(
            values=[*range(1, len(blocks) + 1)],
            labelAngle=-90,
            grid=False,
            labelLimit=0,
            labelOverlap=True,
            labelFontSize=10,
            labelExpr=f'{names}[datum.value - 1]',
        ),
    )


def block_width(blocks: Sequence[str]) -> int:
    """Pixels that the names of blocks need beside each other."""
    return max(300, 13 * len(blocks))


def block_bars(
    title: str, blocks: Sequence[str], values: Mapping[str, float], unit: str
) -> alt.Chart:
    """A bar at each block that has a value."""
    shown = [k for k, block in enumerate(blocks) if block in values]
    return (
        chart(
            at=np.add(shown, 1),
            block=[blocks[k] for k in shown],
            value=[values[blocks[k]] for k in shown],
        )
        .transform_calculate(left='datum.at - 0.35', right='datum.at + 0.35')
        .mark_rect()
        .encode(
            block_axis(blocks, 'left'),
            alt.X2('right:Q'),
            alt.Y('value:Q', title=unit),
            alt.Y2Datum(0),
            tooltip=['block:N', number('value', unit)],
        )
        .properties(
            title=wrapped(title), width=block_width(blocks), height=140
        )
    )


def colors(labels: Sequence[str]) -> alt.Scale:
    """A colour for each label, in their order."""
    return alt.Scale(domain=[*labels], range=COLORS)


def dashes(labels: Sequence[str]) -> alt.Scale:
    """A dash for each label: with :func:`colors`, 30 labels differ."""
    return alt.Scale(
        domain=[*labels],
        range=[
            ([1, 0], [6, 3], [2, 2])[i // len(COLORS) % 3]
            for i in range(len(labels))
        ],
    )


def heat(column: str, title: str, highest: float) -> alt.Color:
    """Colours of a heat map from 0 to its highest value."""
    # All zero is the lower end of the colours.
    return alt.Color(
        f'{column}:Q',
        title=title,
        scale=alt.Scale(scheme='viridis', domain=[0, highest or 1.0]),
        legend=alt.Legend(orient='bottom', gradientLength=200),
    )


def lighter(color: str) -> str:
    """A colour, more than half of the way to white."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return '#' + ''.join(f'{255 - int(0.43 * (255 - p)):02x}' for p in parts)


def number(column: str, title: str, digits: int = 5) -> alt.Tooltip:
    """A number that is shown where the pointer stands."""
    return alt.Tooltip(f'{column}:Q', title=title, format=f'.{digits}~g')


def wrapped(text: str, width: int = 40) -> list[str]:
    """A title in lines that fit a phone, none of it left out."""
    return textwrap.wrap(text, width)


def _width(part: Any) -> int:
    """Pixels that a chart, or small ones of one kind, need."""
    if isinstance(part, alt.FacetChart):
        return part.columns * (part.spec.width + SMALL_GAP)
    return part.width


def panels(
    charts: Sequence[Any],
    labels: Sequence[str] = (),
    columns: int | None = None,
    name: str = '',
) -> alt.ConcatChart:
    """Charts beside each other, in the theme of all figures.

    Args:
        charts (Sequence[Chart]): Charts with a width, or facets of such.
        labels (Sequence[str]): Texts of the legend below. Defaults to none.
        columns (int, optional): Charts in a row. Defaults to None, as many
            as 1,100 pixels hold.
        name (str): What a list of such figures calls it. Defaults to none.
    """
    width = max(_width(part) for part in charts)
    columns = min(columns or max(1100 // (width + 90), 1), len(charts))
    # A letter is about 6.5 pixels wide.
    entry = 6.5 * max(map(len, labels), default=0) + 40
    return (
        alt.concat(
            *charts,
            columns=columns,
            spacing=24,
            usermeta=dict(entry=entry, name=name),
        )
        .configure(
            background='white', padding=8, font='Helvetica, Arial, sans-serif'
        )
        .configure_axis(
            domainColor='#9aa4b2',
            tickColor='#9aa4b2',
            gridColor='#e6e9ef',
            labelColor='#1d2733',
            titleColor='#1d2733',
            titleFontWeight='normal',
        )
        .configure_view(stroke=None)
        .configure_title(
            fontSize=13,
            fontWeight='normal',
            anchor='start',
            frame='group',
            offset=16,
        )
        .configure_mark(color=COLORS[0])
        # A mitred join juts out beyond the point that it stands for.
        .configure_line(strokeJoin='round')
        .configure_legend(
            orient='bottom',
            title=None,
            labelLimit=0,
            symbolLimit=0,
            symbolOpacity=1,
            columns=max(int(columns * width / entry), 1),
        )
    )
