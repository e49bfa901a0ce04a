"""Curves, robustness and the pictures of a table."""

import json
import statistics

import numpy as np
import pytest
from matplotlib.image import imread

from projects.reproduction import Cell, plots, table_sheets
from projects.reproduction.complexity import Complexity, measure_complexity
from projects.reproduction.curves import (
    late_validations,
    mean_variance,
    stack_curves,
)
from projects.reproduction.metric_log import logged_losses, logged_seconds
from projects.reproduction.plots import save_plots
from projects.reproduction.seed_figures import draw_curves, draw_violins
from projects.reproduction.step_figures import draw_steps

from .made_results import KEY, result, save


def with_curves(seed, accuracies, losses, **more):
    pairs = [(e, v) for e, v in enumerate(accuracies, 1)]
    return result(
        seed, accuracies[-1], len(pairs), best=pairs[-1],
        curves={KEY: pairs, 'loss': list(enumerate(losses, 1))}, **more)


def cell(tmp_path):
    return Cell('moon', 'Metric', 'Two Moons', ('Accuracy', ), {},
                config=tmp_path / 'net.py')


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    found = [with_curves(s, (80 + rng.normal(size=25)).tolist(),
                         np.exp(-np.arange(25.) / 5 + s).tolist())
             for s in range(3)]
    save(tmp_path, *found)
    return found


def measure(config):
    return Complexity(672, None, None, 'whole model')


def test_file_is_json_with_a_line_a_key(tmp_path, runs):
    text = (tmp_path / 'net' / 'seed_1.json').read_text()
    assert json.loads(text) == json.loads(json.dumps(runs[1]))
    assert len(text.splitlines()) == len(runs[1]) + 2


def test_robustness_sheet(tmp_path, runs):
    _, sheet = table_sheets([cell(tmp_path)], tmp_path, measure)
    ends = [r['last']['metrics'][KEY] for r in runs]
    late = [statistics.variance([v for _, v in r['curves'][KEY][-10:]])
            for r in runs]
    assert sheet.rows == [[
        'Metric', f'{statistics.variance(ends):.3g}', '3',
        f'{statistics.fmean(late):.3g}', '16-25'
    ]]
    assert any('on the test data after' in note for note in sheet.notes)
    # best is None where validation data are not the test's
    save(tmp_path, *(dict(r, best=None) for r in runs))
    _, sheet = table_sheets([cell(tmp_path)], tmp_path, measure)
    assert any('on the validation data after' in n for n in sheet.notes)


def test_two_validations_are_no_end_of_training(tmp_path, runs):
    for r in runs:
        curves = {KEY: r['curves'][KEY][4::5]}  # epochs 5, 10, ..., 25
        save(tmp_path, dict(r, curves=curves))
    _, sheet = table_sheets([cell(tmp_path)], tmp_path, measure)
    assert sheet.rows[0][1] != '–' and sheet.rows[0][3:] == ['–', '–']
    for seed in (1, 2):
        (tmp_path / 'net' / f'seed_{seed}.json').unlink()
    assert len(table_sheets([cell(tmp_path)], tmp_path, measure)) == 1


def test_networks_without_images_have_no_flops(tmp_path, runs):
    sheet = table_sheets([cell(tmp_path)], tmp_path, measure)[0]
    assert sheet.rows[0][1:3] == ['0.00067', '–']
    assert not any('GFLOPs' in note for note in sheet.notes)


def test_parameters_of_a_config():
    size = measure_complexity(
        'projects/metric_attention/configs/moon/ipn_metric_moon.py')
    value = 10 * 10 + 10
    metric = 10 * 10 + 10 + 10 * 10
    assert size.parameters == 2 * 10 + 10 + 2 * (value + metric) + 10 * 2 + 2
    assert size.flops is None


def test_results_without_curves(tmp_path, runs):
    for r in runs:
        del r['curves']
        save(tmp_path, r)
    assert len(table_sheets([cell(tmp_path)], tmp_path, measure)) == 1
    paths = save_plots([cell(tmp_path)], tmp_path, tmp_path / 'out')
    assert [p.name for p in paths] == ['moon_Two_Moons_Accuracy_violin.png']


def test_seeds_of_unequal_length():
    a, b = (with_curves(seed, values, [1.]) for seed, values in enumerate(
        ([1., 2., 3.], [4., 5.])))
    epochs, values = stack_curves([a, b], KEY)
    assert epochs.tolist() == [1, 2]
    assert values.tolist() == [[1., 2.], [4., 5.]]
    assert stack_curves([a, {}], KEY) is None and stack_curves([], KEY) is None


def test_variance_over_last_epochs():
    values = np.array([[1., 3.], [5., 5.]])
    assert mean_variance(values) == pytest.approx((2 + 0) / 2)

    def late(*epochs):
        epochs = np.array(epochs)
        return epochs[late_validations(epochs)].tolist()
    assert late(*range(1, 101)) == list(range(91, 101))
    # The rise at the start of a short training is no unrest at its end.
    assert late(*range(1, 9)) == [5, 6, 7, 8]
    assert late(1, 2, 3, 4) == late(5, 10, 15, 20) == late(7) == []


def test_pictures(tmp_path, runs):
    paths = save_plots([cell(tmp_path)], tmp_path, tmp_path / 'out')
    assert [p.name for p in paths] == [
        'moon_Two_Moons_curves.png', 'moon_Two_Moons_Accuracy_violin.png']
    for path in paths:
        assert imread(path)[..., :3].std() > 0.01
    with pytest.raises(FileNotFoundError, match='reproduction.paper run moon'):
        save_plots([cell(tmp_path)], tmp_path / 'none', tmp_path / 'out')


def test_picture_of_attention_values(tmp_path, monkeypatch):
    """Beside the metric of all rows; a plain network and a row without
    records have none."""
    drawn = []

    def draw(*args):
        drawn.append(args)
        return draw_steps(*args)

    monkeypatch.setattr(plots, 'draw_steps', draw)
    rng = np.random.default_rng(0)
    steps = {'Plain': np.ones((2, 3, 4)), 'SE': rng.random((2, 3, 4)),
             'Other': None}
    for row, values in steps.items():
        for seed in range(2):
            r = with_curves(
                seed, [60., 70., 80., 90.], [4., 3., 2., 1.], config=row,
                # As of a test whose recording could not be written.
                stiffness=dict(stages=[0, 0, 1, 1]) if seed else None)
            if values is not None:
                r['validations'] = [
                    dict(epoch=2 + 2 * i, step=step.tolist(), nsi=[],
                         tns=dict(adaptive=dict(stage=seed + i)))
                    for i, step in enumerate(values[seed])]
            save(tmp_path, r)
    cells = [Cell('moon', row, 'Two Moons', ('Accuracy', ), {},
                  config=tmp_path / f'{row}.py') for row in steps]
    paths = save_plots(cells, tmp_path, tmp_path / 'out')
    assert 'moon_Two_Moons_steps.png' in [p.name for p in paths]
    (rows, stages, title, curves), = drawn
    assert stages == [0, 0, 1, 1] and title == 'Accuracy (%), test'
    assert list(rows) == ['SE'] and list(curves) == list(steps)
    assert curves['SE'][1].tolist() == [[60., 70., 80., 90.]] * 2
    figure = draw_steps(rows, stages, title, curves)
    image, = figure.axes[0].images
    np.testing.assert_allclose(image.get_array(),
                               steps['SE'].mean(0).T, rtol=1e-12)
    ticks = figure.axes[0].get_xticklabels()
    assert [t.get_text() for t in ticks] == ['2', '4', '6']
    border, = figure.axes[0].lines
    assert set(border.get_ydata()) == {1.5}


def test_curves_show_mean_and_deviation():
    values = np.array([[1., 2., 4.], [3., 2., 8.]])
    figure = draw_curves({'loss': {'a': (np.arange(3), values)}})
    ax, = figure.axes
    assert ax.lines[0].get_ydata().tolist() == [2., 2., 6.]
    band = ax.collections[0].get_paths()[0].vertices
    root = 2**0.5
    assert band[:, 1].max() == pytest.approx(6 + 2 * root)
    assert band[:, 1].min() == pytest.approx(2 - root)


@pytest.mark.parametrize(('least', 'scale'), [
    (1.1, 'linear'), (0.9, 'log'), (0., 'linear'), (-1., 'linear')])
def test_far_apart_curves_have_a_logarithmic_axis(least, scale):
    figure = draw_curves({'TNS': {
        'a': (np.arange(2), np.array([[5., 110.], [5., 90.]])),
        'b': (np.arange(2), np.array([[least, 2.]]))}})
    ax, = figure.axes
    assert ax.get_yscale() == scale


def test_violin_of_one_seed_is_a_point():
    figure = draw_violins('accuracy', {
        'a': np.array([90.]), 'b': np.array([1., 2., 4.])})
    ax, = figure.axes
    places = [tuple(p) for c in ax.collections if len(c.get_offsets()) in
              (1, 3) for p in c.get_offsets().tolist()]
    assert (0., 90.) in places and (1., 4.) in places


@pytest.fixture
def log(tmp_path):
    def write(start, *entries):
        folder = tmp_path / start / 'vis_data'
        folder.mkdir(parents=True)
        for name in (start, 'scalars'):  # as mmengine does
            (folder / f'{name}.json').write_text(
                ''.join(json.dumps(e) + '\n' for e in entries))
    return write


def test_seconds_of_iterations(tmp_path, log):
    """Each second once: those of validations are not of the training."""
    log('20260101_000000', *(
        dict(epoch=1, time=seconds, iter=i, step=i)
        for i, seconds in ((20, 1.), (40, 2.), (79, 3.))),
        {KEY: 50., 'time': 100., 'step': 1})
    assert logged_seconds(tmp_path) == 20 + 2 * 20 + 3 * 39
    # This one began at 60 and repeats what was lost.
    log('20260102_000000', *(dict(epoch=1, time=10., iter=i, step=i)
                             for i in (70, 80)))
    assert logged_seconds(tmp_path) == 20 + 2 * 20 + 3 * 39 + 10 * 20
    # This one at 79, and it was killed soon.
    log('20260103_000000', dict(epoch=2, time=5., iter=99, step=99))
    assert logged_seconds(tmp_path) == (
        20 + 2 * 20 + 3 * 39 + 10 * 20 + 5 * 19)


def test_losses_of_epochs(tmp_path, log):
    log('20260101_000000', dict(epoch=1, loss=4., iter=5, step=5),
        dict(epoch=1, loss=2., iter=10, step=10),
        {KEY: 50., 'step': 1}, dict(epoch=2, loss=9., iter=15, step=15))
    log('20260102_000000', dict(epoch=2, loss=1., iter=15, step=15))
    assert logged_losses(tmp_path) == {1: 3., 2: 1.}
    # One that goes on within an epoch adds to it; what the one before had
    # logged beyond is of another course.
    log('20260103_000000', *(dict(epoch=2, loss=v, iter=i, step=i)
                             for i, v in ((20, 7.), (25, 90.), (30, 90.))))
    log('20260104_000000', dict(epoch=2, loss=4., iter=25, step=25))
    assert logged_losses(tmp_path) == {1: 3., 2: 4.}
    log('20260105_000000', dict(epoch=3, loss=float('nan'), step=40))
    with pytest.raises(ValueError, match='loss is nan'):
        logged_losses(tmp_path)
