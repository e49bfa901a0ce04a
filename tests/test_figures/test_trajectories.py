from dataclasses import replace

import numpy as np
import pytest

from mmstepnet.figures.trajectories import (
    draw_overlay,
    draw_trajectories,
    overlay_figure,
    spread_indices,
    stage_spans,
    trajectory_figure,
)
from tests.test_figures.conftest import changed, part_of


def test_stage_spans():
    assert stage_spans(np.array([0, 0, 1, 2, 2, 2])) == [
        (1, 2), (3, 3), (4, 6)]
    assert stage_spans(np.array([4])) == [(1, 1)]


@pytest.mark.parametrize('count, most', [(1, 6), (5, 6), (6, 6), (1000, 7)])
def test_spread_indices(count, most):
    indices = spread_indices(count, most)
    assert len(indices) == min(count, most)
    assert (np.diff(indices) > 0).all()
    assert indices[0] == 0 and indices[-1] in (count - 1, 0)


def test_figure_3(run):
    traces = {t.name: t for t in trajectory_figure(run).data}
    np.testing.assert_allclose(traces['mean'].y, run.nsi.mean(0))
    assert list(traces['mean'].x) == run.trajectories.blocks
    figure = draw_trajectories([run])
    spans = trajectory_figure(run).layout.shapes
    assert [(s.x0, s.x1) for s in spans] == [(-0.5, 1.5), (1.5, 3.5),
                                             (3.5, 5.5)]
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    np.testing.assert_allclose(lines['mean'].get_ydata(), run.nsi.mean(0))


def test_stages_are_named(run):
    expected = ['stage 1', 'stage 2', 'stage 3']
    texts = [a.text for a in trajectory_figure(run).layout.annotations]
    assert texts == expected
    ax, = draw_trajectories([run]).axes
    assert [t.get_text() for t in ax.texts] == expected
    assert ax.get_ylabel() == 'NSI (adaptive)'


@pytest.mark.parametrize('blocks, shown', [(6, 6), (24, 24), (30, 15)])
def test_blocks_are_named(run, blocks, shown):
    run = part_of(run, blocks=[0] * blocks)
    names = [f'encoder.layers.{i}' for i in range(blocks)]
    run = changed(run, blocks=names)
    ax, = draw_trajectories([run]).axes
    ticks = dict(zip(ax.get_xticks(), ax.get_xticklabels()))
    assert len(ticks) == shown
    assert all(names[at - 1] == text.get_text() for at, text in ticks.items())


@pytest.mark.parametrize('draw', [
    lambda run: draw_trajectories([run]), lambda run: draw_overlay([run], '')])
@pytest.mark.parametrize('scale', [0.01, 30])
def test_the_axis_holds_all_values(run, draw, scale):
    run = replace(run, trajectories=replace(
        run.trajectories, adaptive=scale * run.trajectories.adaptive))
    ax = draw(run).axes[0]
    highest = max(line.get_ydata().max() for line in ax.lines)
    bottom, top = ax.get_ylim()
    assert bottom == 0 and highest < top < 1.2 * highest


def test_figure_10(runs):
    figure = overlay_figure(runs)
    assert [t.name for t in figure.data] == [run.label for run in runs]
    styles = {(t.line.color, t.line.dash) for t in figure.data}
    assert len(styles) == len(runs)
    lines = draw_overlay(runs, 'title').axes[0].lines
    for run, trace, line in zip(runs, figure.data, lines):
        np.testing.assert_allclose(trace.y, run.nsi.mean(0))
        np.testing.assert_allclose(line.get_ydata(), run.nsi.mean(0))
