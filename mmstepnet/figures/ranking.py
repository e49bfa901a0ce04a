"""Accuracy against TNS over runs, Figure 7 of the paper."""

from collections.abc import Sequence

import altair as alt

from mmstepnet.stiffness import RankCorrelation, correlate_ranks

from .runs import Run, by_model
from .style import chart, colors, number, panels, wrapped


def rank_correlation(runs: Sequence[Run]) -> RankCorrelation | None:
    """Rank runs of one metric by TNS and by accuracy.

    Args:
        runs (Sequence[Run]): Runs with an accuracy, all of one metric.

    Returns:
        RankCorrelation, optional: See :func:`correlate_ranks`. None where it
        is not defined.
    """
    found = correlate_ranks(
        [run.tns for run in runs],
        [run.known_accuracy.value for run in runs],
        'runs',
    )
    return found if isinstance(found, RankCorrelation) else None


def runs_by_metric(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs whose accuracies may be compared: one metric, one data.

    Runs without an accuracy are left out.
    """
    groups = {}
    for run in runs:
        if run.accuracy is not None:
            groups.setdefault(run.comparison, []).append(run)
    return groups


def compared_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of each metric that several of them have."""
    return {
        name: members
        for name, members in runs_by_metric(runs).items()
        if len(members) > 1
    }


def ranking_figure(groups: dict[str, list[Run]]) -> alt.ConcatChart:
    """Figure 7, one panel a metric; a bar is the interval of TNS."""
    models = [*by_model([run for runs in groups.values() for run in runs])]
    parts = []
    for name, runs in groups.items():
        known = [run.known_accuracy for run in runs]
        ranks = rank_correlation(runs)
        base = chart(
            tns=[run.tns for run in runs],
            low=[run.tns_interval[0] for run in runs],
            high=[run.tns_interval[1] for run in runs],
            value=[a.value for a in known],
            model=[run.model for run in runs],
            run=[r.label for r in runs],
            where=[a.where for a in known],
        ).encode(
            alt.Y(
                'value:Q',
                title=known[0].metric,
                scale=alt.Scale(zero=False, padding=12),
            ),
            alt.Color('model:N', scale=colors(models)),
            tooltip=[
                'run:N',
                number('tns', 'TNS'),
                number('low', '95 % from'),
                number('high', 'to'),
                number('value', 'accuracy'),
                'where:N',
            ],
        )
        title = f'TNS ({runs[0].reading}), 95 % over samples'
        scale = alt.Scale(zero=False)
        intervals = base.mark_rule(strokeWidth=2, opacity=0.5).encode(
            alt.X('low:Q', title=title, scale=scale), alt.X2('high:Q')
        )
        points = base.mark_point(size=70, filled=True).encode(
            alt.X('tns:Q', title=title, scale=scale),
            alt.Shape('model:N', scale=alt.Scale(domain=models)),
        )
        parts.append(
            alt.layer(intervals, points).properties(
                title=[
                    *wrapped(name),
                    *(wrapped(str(ranks)) if ranks else []),
                ],
                width=480,
                height=280,
            )
        )
    return panels(parts, models).resolve_scale(color='shared', shape='shared')
