from dataclasses import replace

import numpy as np
import pytest

from mmstepnet.figures.attention_values import (
    adapts,
    attention_figure,
    block_correlations,
    correlation,
    draw_attention,
    trajectory_correlations,
)


def test_correlation_of_rows():
    x, y = np.random.default_rng(0).random((2, 7, 20))
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y)]
    np.testing.assert_allclose(correlation(x, y), expected, rtol=1e-12)


def test_undefined_correlations():
    x, y = np.random.default_rng(1).random((2, 3, 20), dtype=np.float32)
    x[0] = 0.25
    x[1] = np.float32(0.25) + np.spacing(np.float32(0.25)) * (y[1] > 0.5)
    found = correlation(x, y)
    assert np.isnan(found[:2]).all() and np.isfinite(found[2])
    assert np.isnan(correlation(x[:, :2], y[:, :2])).all()


def test_adapts(runs):
    assert [adapts(run) for run in runs] == [False] * 2 + [True] * 4


def test_block_by_block(run):
    expected = [np.corrcoef(run.nsi[:, i], run.step[:, i])[0, 1]
                for i in range(6)]
    np.testing.assert_allclose(block_correlations(run), expected, rtol=1e-5)
    figure = attention_figure(run, 1000)
    bars = next(t for t in figure.data if t.xaxis == 'x2')
    np.testing.assert_allclose(bars.y, expected, rtol=1e-5)


def test_along_trajectories(run):
    # Two recorded blocks a stage have no correlation, all six have.
    found = trajectory_correlations(run)
    assert list(found) == ['all stages']
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(run.nsi, run.step)]
    np.testing.assert_allclose(found['all stages'], expected, rtol=1e-5)

    deeper = replace(run, stages=np.array([3, 3, 3, 1, 1, 1]))
    found = trajectory_correlations(deeper)
    assert list(found) == ['stage 1', 'stage 2', 'all stages']
    np.testing.assert_allclose(
        found['stage 2'][0],
        np.corrcoef(run.nsi[0, 3:], run.step[0, 3:])[0, 1], rtol=1e-5)


def test_points_are_limited(run):
    figure = attention_figure(run, 10)
    points = [t for t in figure.data if t.type == 'scatter']
    assert len(points) == 6 and all(len(t.x) == 10 for t in points)
    assert [t.visible for t in points] == [True] * 3 + ['legendonly'] * 3
    assert set(points[0].y) <= set(run.nsi[:, 0])


def test_blocks_without_attention(runs):
    # As StepNet's in a stage whose blocks are all projected: step 1.
    run = runs[4]
    step = run.step.copy()
    step[:, :2] = 1
    part = replace(run, step=step)
    assert np.isnan(block_correlations(part)[:2]).all()
    titles = [ax.get_title() for ax in draw_attention(part).axes]
    assert titles[0].startswith(run.blocks[2])
    points = [t for t in attention_figure(part, 9).data
              if t.type == 'scatter']
    assert len(points) == 4


def test_paper_figure_points(run):
    axes = draw_attention(run).axes
    assert len(axes) == 5
    offsets = axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(offsets[:, 0], run.step[:, 0])
    np.testing.assert_allclose(offsets[:, 1], run.nsi[:, 0])
    assert sum(p.get_height() for p in axes[3].patches) == pytest.approx(
        np.nansum(block_correlations(run)))
