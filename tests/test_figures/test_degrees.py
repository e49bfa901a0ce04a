import numpy as np
import pytest

from mmstepnet.figures.degrees import (
    OCCURRENCE,
    PROPORTION,
    degrees_figure,
    draw_degrees,
)
from mmstepnet.stiffness import (
    degree_axes,
    stiffness_occurrence,
    stiffness_proportion,
)
from tests.test_figures.conftest import flat_run


@pytest.mark.parametrize('measure, share', [
    (OCCURRENCE, stiffness_occurrence), (PROPORTION, stiffness_proportion)])
def test_maps_show_the_definition(runs, measure, share):
    figure = degrees_figure(runs, measure)
    maps = [t for t in figure.data if t.type == 'heatmap']
    assert len(maps) == len(runs)
    m1, m2 = degree_axes(
        [(run.nsi, run.trajectories.stages) for run in runs])
    for run, trace in zip(runs, maps):
        np.testing.assert_allclose(trace.x, m1, rtol=1e-6)
        np.testing.assert_allclose(trace.y, m2, rtol=1e-6)
        np.testing.assert_allclose(
            trace.z, share(run.nsi, run.trajectories.stages, m1, m2).T,
            atol=1e-6)
    assert maps[2].z.std() > 0


def test_grid_holds_the_volume(run):
    # The axes leave out the rarest hundredth; cells are coarse.
    trace = degrees_figure([run], OCCURRENCE).data[0]
    cell = (trace.x[1] - trace.x[0]) * (trace.y[1] - trace.y[0])
    assert trace.z.sum() * cell == pytest.approx(run.tns, rel=0.05)


def test_title_tells_the_integral(run):
    texts = [a.text for a in degrees_figure([run], OCCURRENCE)
             .layout.annotations]
    assert f'TNS (adaptive) = {run.tns:.3g}' in texts[0]
    figure = draw_degrees([run], PROPORTION)
    assert (f'∬p̂ (adaptive) = {run.proportion:.3g}'
            in figure.axes[0].get_title())


def test_paper_map_has_m1_across(run):
    given = run.nsi, run.trajectories.stages
    m1, m2 = degree_axes([given])
    image = draw_degrees([run], OCCURRENCE).axes[0].images[0]
    left, right, bottom, top = image.get_extent()
    assert (left, bottom) == (0, 0)
    assert right == pytest.approx(m1[0] + m1[-1])
    assert top == pytest.approx(m2[0] + m2[-1])
    np.testing.assert_allclose(
        image.get_array(), stiffness_occurrence(*given, m1, m2).T, atol=1e-6)


def test_one_block_a_stage(run):
    flat = flat_run(run)
    assert flat.trajectories.single_block_stages and flat.tns == 0
    maps = degrees_figure([flat, run], OCCURRENCE).data
    assert maps[0].z.max() == 0 and maps[1].z.max() > 0
    assert np.isfinite(degrees_figure([flat], PROPORTION).data[0].x).all()
