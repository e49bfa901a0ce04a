"""NSI along the blocks, Figures 3 and 10 of the paper."""

from collections.abc import Sequence

import altair as alt
import numpy as np

from mmstepnet.stiffness import Trajectories

from .runs import Run
from .style import (
    COLORS,
    block_axis,
    block_width,
    chart,
    colors,
    dashes,
    lighter,
    number,
    panels,
    wrapped,
)

SAMPLES = 6
"""Single trajectories in Figure 3."""

GREY = '#5b6b7b'


def stage_spans(stages: np.ndarray) -> list[tuple[int, int]]:
    """First and last position of each stage's blocks, counted from 1."""
    starts = np.flatnonzero(np.diff(stages, prepend=stages[0] - 1))
    ends = np.append(starts[1:], len(stages))
    return [(int(a) + 1, int(b)) for a, b in zip(starts, ends)]


def _stage_label(recorded: Trajectories, first: int, last: int) -> str:
    """Name of the stage of some blocks; its number where they are few."""
    name = recorded.stage_names[recorded.stages[first - 1]]
    wide = (last - first + 1) / len(recorded.blocks) > 0.12
    return name if wide else name.rpartition(' ')[2]


def spread_indices(count: int, most: int) -> np.ndarray:
    """At most ``most`` of ``count`` indices, evenly spread and ascending."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def trajectory_figure(runs: Sequence[Run]) -> alt.ConcatChart:
    """Figure 3, a panel a run: mean, 80 % band and single samples.

    Each kind of step has lines of its own. All panels have one scale.
    """
    kinds = [*dict.fromkeys(k for run in runs for k in run.trajectories.kinds)]
    ends = [f', {kind or "others"}' if kinds[1:] else '' for kind in kinds]
    means = [f'mean{end}' for end in ends]
    bands = [f'10–90 % of samples{end}' for end in ends]
    singles = 'single samples'
    hues = COLORS[: len(kinds)]
    names = [*means, *bands, singles]
    color = alt.Color(
        'what:N',
        scale=alt.Scale(
            domain=names, range=[*hues, *map(lighter, hues), GREY]
        ),
    )
    parts = []
    for run in runs:
        recorded = run.trajectories
        axes = (
            block_axis(recorded.blocks),
            alt.Y('nsi:Q', title=f'NSI ({run.reading})'),
            color,
        )
        layers = []
        for kind, places in recorded.kinds.items():
            i = kinds.index(kind)
            layers += _lines(run, places, axes, means[i], bands[i], singles)
        parts.append(
            alt.layer(*_stages(recorded), *layers).properties(
                title=wrapped(run.label),
                width=block_width(recorded.blocks),
                height=220,
            )
        )
    return panels(parts, names).resolve_scale(y='shared')


def _lines(
    run: Run, places: list[int], axes: tuple, mean: str, band: str, single: str
) -> list[alt.Chart]:
    """Band, single samples and mean of the NSI at some places.

    Args:
        run (Run): The run.
        places (list[int]): The places, from 0.
        axes (tuple): Both axes and the colours.
        mean (str): What the legend calls the mean.
        band (str): The band.
        single (str): The single samples.
    """
    nsi = run.nsi[:, places]
    blocks = [run.trajectories.blocks[k] for k in places]
    at = np.add(places, 1)
    low, high = np.quantile(nsi, (0.1, 0.9), axis=0)
    rows = spread_indices(len(nsi), SAMPLES)
    return [
        chart(at=at, nsi=low, high=high, what=[band] * len(at))
        .mark_area(opacity=0.5)
        .encode(*axes, alt.Y2('high:Q')),
        chart(
            at=np.tile(at, len(rows)),
            block=blocks * len(rows),
            nsi=nsi[rows].ravel(),
            sample=np.repeat(rows, len(at)),
            what=[single] * len(at) * len(rows),
        )
        .mark_line(strokeWidth=0.7, opacity=0.7)
        .encode(
            *axes,
            detail='sample:N',
            tooltip=['sample:N', 'block:N', number('nsi', 'NSI')],
        ),
        chart(at=at, block=blocks, nsi=nsi.mean(0), what=[mean] * len(at))
        .mark_line(point=True)
        .encode(*axes, tooltip=['block:N', number('nsi', 'mean NSI')]),
    ]


def overlay_figure(runs: Sequence[Run], title: str) -> alt.ConcatChart:
    """Figure 10: mean NSI of runs with the same blocks, in one panel.

    Each kind of step has a line of its own.
    """
    labels = [run.label for run in runs]
    blocks = runs[0].trajectories.blocks
    kinds = np.empty(len(blocks), object)
    for kind, places in runs[0].trajectories.kinds.items():
        kinds[places] = kind
    lines = (
        chart(
            at=[*range(1, len(blocks) + 1)] * len(runs),
            block=blocks * len(runs),
            nsi=np.concatenate([run.nsi.mean(0) for run in runs]),
            run=np.repeat(labels, len(blocks)),
            kind=kinds.astype(str).tolist() * len(runs),
        )
        .mark_line(point=True)
        .encode(
            block_axis(blocks),
            alt.Y(
                'nsi:Q', title=f'NSI ({runs[0].reading}), mean over samples'
            ),
            alt.Color('run:N', scale=colors(labels)),
            alt.StrokeDash('run:N', scale=dashes(labels)),
            detail='kind:N',
            tooltip=['run:N', 'block:N', number('nsi', 'mean NSI')],
        )
    )
    return panels(
        [
            alt.layer(*_stages(runs[0].trajectories), lines).properties(
                title=wrapped(title), width=block_width(blocks), height=260
            )
        ],
        labels,
        name=title,
    )


def _stages(recorded: Trajectories) -> tuple[alt.Chart, alt.Chart]:
    """Shades of every other stage, and the stages' names above."""
    spans = stage_spans(recorded.stages)
    x = block_axis(recorded.blocks)
    stages = chart(
        at=[first - 0.5 for first, _ in spans],
        end=[last + 0.5 for _, last in spans],
        middle=[(first + last) / 2 for first, last in spans],
        stage=[_stage_label(recorded, *span) for span in spans],
        fill=(['#f1f4f9', 'white'] * len(spans))[: len(spans)],
    )
    return (
        stages.mark_rect().encode(
            x, alt.X2('end:Q'), fill=alt.Fill('fill:N', scale=None)
        ),
        stages.transform_calculate(at='datum.middle')
        .mark_text(baseline='bottom', dy=-3, fontSize=10, color=GREY)
        .encode(x, y=alt.value(0), text='stage:N'),
    )
