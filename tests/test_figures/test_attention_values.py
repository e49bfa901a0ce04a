import numpy as np
import pytest

from mmstepnet.figures.attention_values import (
    attention_figure,
    draw_attention,
)
from tests.test_figures.conftest import changed


def test_block_by_block(run):
    figure = attention_figure(run, 1000)
    bars = next(t for t in figure.data if t.xaxis == 'x2')
    np.testing.assert_allclose(
        bars.y, run.trajectories.block_correlations(), rtol=1e-5)


def test_points_are_limited(run):
    figure = attention_figure(run, 10)
    points = [t for t in figure.data if t.type == 'scatter']
    assert len(points) == 6 and all(len(t.x) == 10 for t in points)
    assert [t.visible for t in points] == [True] * 3 + ['legendonly'] * 3
    assert set(points[0].y) <= set(run.nsi[:, 0])


def test_blocks_without_attention(runs):
    # As StepNet's in a stage whose blocks are all projected: step 1.
    run = runs[4]
    step = run.trajectories.step_mean.copy()
    step[:, :2] = 1
    part = changed(run, step_mean=step)
    titles = [ax.get_title() for ax in draw_attention(part).axes]
    assert titles[0].startswith(run.trajectories.blocks[2])
    points = [t for t in attention_figure(part, 9).data
              if t.type == 'scatter']
    assert len(points) == 4


def test_paper_figure_points(run):
    axes = draw_attention(run).axes
    assert len(axes) == 5
    offsets = axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(offsets[:, 0], run.trajectories.step_mean[:, 0])
    np.testing.assert_allclose(offsets[:, 1], run.nsi[:, 0])
    assert sum(p.get_height() for p in axes[3].patches) == pytest.approx(
        np.nansum(run.trajectories.block_correlations()))
