"""The report that compares runs: a page that needs no network, and PNGs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt
import jinja2
import numpy as np
import vl_convert

from mmstepnet.stiffness import MEANS, READING_TEXTS, READINGS, Trainings
from mmstepnet.stiffness.gates import LEAST_DEVIATION
from mmstepnet.stiffness.trajectories import DRAWS
from mmstepnet.version import __version__

from .attention_values import attention_figure
from .figures import report_charts, save_charts
from .ranking import compared_runs, rank_correlation, runs_by_metric
from .runs import Run, by_model, has_other_blocks
from .style import SMALL_GAP
from .trajectories import SAMPLES

MOST_POINTS = 10_000
"""Points of all scatter plots of a page together: about 0.2 MB of it."""


def save_report(
    runs: Sequence[Run],
    out_dir: str | Path,
    trainings: Trainings | None = None,
) -> Path:
    """Write the page and the PNG figures that compare runs.

    Args:
        runs (Sequence[Run]): What is compared, in one reading.
        out_dir (str | Path): Where the files go; made if missing.
        trainings (Mapping, optional): What
            :func:`~mmstepnet.stiffness.read_trainings` found, for a panel of
            its own. Defaults to none.

    Returns:
        Path: The page. It holds all that it shows, Vega included.
    """
    charts = report_charts(runs, trainings)
    images = save_charts(
        {Path(out_dir, f'{name}.png'): chart for name, chart in charts.items()}
    )
    path = Path(out_dir, 'stiffness_report.html')
    path.write_text(
        report_page(runs, charts, [i.name for i in images]), 'utf-8'
    )
    return path


def report_page(
    runs: Sequence[Run],
    charts: Mapping[str, alt.ConcatChart],
    images: Sequence[str] = (),
) -> str:
    """The page, HTML.

    Args:
        runs (Sequence[Run]): What is compared.
        charts (Mapping[str, ConcatChart]): What :func:`report_charts` gave.
            Figure 9 is made anew, of fewer points.
        images (Sequence[str]): PNG files beside the page. Defaults to none.
    """
    adapting = [run for run in runs if run.adapts]
    points = max(
        MOST_POINTS
        // max(sum(len(run.trajectories.blocks) for run in adapting), 1),
        20,
    )
    charts = {
        **charts,
        **{
            f'figure_9_run_{i:02}': attention_figure(run, points)
            for i, run in enumerate(runs, 1)
            if run.adapts
        },
    }
    compared = compared_runs(runs)
    panels = {}
    for name, chart in charts.items():
        panel = re.split('_run_|_set_|(?<=training)_', name)[0]
        panels.setdefault(panel, []).append(chart.to_dict())
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader('mmstepnet.figures', ''),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    pages.policies['json.dumps_kwargs'] = {'separators': (',', ':')}
    return pages.get_template('report.html.jinja').render(
        runs=runs,
        reading=runs[0].reading,
        reading_texts=READING_TEXTS,
        readings=READINGS,
        means=MEANS,
        draws=DRAWS,
        models=by_model(runs),
        spread=spread,
        compared=compared,
        mixed=any(map(has_other_blocks, compared.values())),
        correlations={
            name: found
            for name, members in compared.items()
            if (found := rank_correlation(members))
        },
        runs_by_metric=runs_by_metric,
        panels=panels,
        shown_samples=SAMPLES,
        points=points,
        least_deviation=LEAST_DEVIATION,
        small_gap=SMALL_GAP,
        images=images,
        version=__version__,
        vega_js=vl_convert.javascript_bundle(),  # type: ignore
    )


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, with Bessel's correction."""
    deviation = f' ± {np.std(values, ddof=1):.2g}' if len(values) > 1 else ''
    return f'{np.mean(values):.4g}{deviation}'
