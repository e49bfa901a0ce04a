"""What an attention is worth on somebody's own pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from .figures import save_charts
from .style import COLORS, chart, panels, wrapped

ROW = 44
"""Pixels of a rung."""


def save_worth(comparison: Any, path: Path) -> Path:
    """Draw what :func:`mmstepnet.compare_rungs` found.

    Args:
        comparison (Comparison): What it returned.
        path (Path): The file, ``.png``, ``.svg`` or ``.pdf``.
    """
    save_charts({path: worth_figure(comparison)})
    return path


def worth_figure(comparison: Any) -> alt.ConcatChart:
    """Accuracies and differences of rungs, a dot a fold."""
    rungs = comparison.rungs
    labels = []
    for rung in rungs:
        labels.append(
            f'{rung["rung"]}|{rung["trained"]:,} numbers trained|'
            f'inference × {rung["inference"]:.2f}'
        )
    accuracies = [rung['accuracy'] for rung in rungs]
    of_fold = [rung['folds'] for rung in rungs]
    left = _dots(labels, of_fold, accuracies, 'accuracy, %')
    differences = comparison.differences
    labels = [f'{d["first"]}|− {d["second"]}' for d in differences]
    points = [d['points'] for d in differences]
    of_rung = {rung['rung']: np.array(rung['folds']) for rung in rungs}
    of_fold = [of_rung[d['first']] - of_rung[d['second']] for d in differences]
    right = _dots(labels, of_fold, points, 'difference, points')
    reach = (
        chart(
            label=labels,
            low=[d['low'] for d in differences],
            high=[d['high'] for d in differences],
        )
        .mark_rule(size=2)
        .encode(_axis(labels), alt.X('low:Q'), alt.X2('high:Q'))
    )
    zero = chart(zero=[0.0]).mark_rule(color='#9aa4b2').encode(x='zero:Q')
    return panels(
        [
            left.properties(
                title='Accuracy, a dot a fold',
                width=300,
                height=ROW * len(accuracies),
            ),
            alt.layer(zero, reach, right).properties(
                title='Differences and their intervals at 95 %',
                width=300,
                height=ROW * len(points),
            ),
        ]
    ).properties(title=wrapped(comparison.sentence, 110))


def _dots(
    labels: Sequence[str],
    of_fold: Sequence[Any],
    means: Sequence[float],
    title: str,
) -> Any:
    """A dot for each fold of a row, and a line across at its mean."""
    rows = np.repeat(labels, [len(folds) for folds in of_fold])
    x = alt.X('value:Q', title=title, scale=alt.Scale(zero=False))
    dots = chart(label=rows, value=np.concatenate(of_fold)).mark_circle(
        opacity=0.6, size=50
    )
    ticks = chart(label=labels, value=means).mark_tick(
        color=COLORS[1], thickness=3, size=22
    )
    return alt.layer(
        dots.encode(_axis(labels), x), ticks.encode(_axis(labels), x)
    )


def _axis(labels: Sequence[str]) -> alt.Y:
    """A row for each label, in their order."""
    return alt.Y(
        'label:N',
        title=None,
        sort=[*labels],
        axis=alt.Axis(labelExpr="split(datum.label, '|')", labelLimit=0),
    )
