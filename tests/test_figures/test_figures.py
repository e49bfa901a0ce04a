"""The figures: what Vega draws, against the recording."""

import io
import unicodedata
from collections import Counter
from dataclasses import replace

import altair as alt
import numpy as np
import pytest
import vl_convert
from PIL import Image

from mmstepnet.figures import (
    save_block_scores,
    save_report_figures,
    save_stiffness_figures,
)
from mmstepnet.figures.attention_values import attention_figure
from mmstepnet.figures.block_scores import block_scores_figure
from mmstepnet.figures.degrees import OCCURRENCE, PROPORTION, degrees_figure
from mmstepnet.figures.figures import save_charts
from mmstepnet.figures.ranking import (
    compared_runs,
    rank_correlation,
    ranking_figure,
    runs_by_metric,
)
from mmstepnet.figures.style import COLORS, block_names
from mmstepnet.figures.training import training_figure
from mmstepnet.figures.trajectories import (
    overlay_figure,
    spread_indices,
    trajectory_figure,
)
from mmstepnet.stiffness import (
    correlate_ranks,
    degree_axes,
    stiffness_occurrence,
    stiffness_proportion,
)
from tests.test_figures.conftest import (
    changed,
    checkpoints,
    drawn,
    flat_run,
    numbers,
    part_of,
    texts,
)


@pytest.mark.parametrize(
    'measure, share, total',
    [
        pytest.param(
            OCCURRENCE,
            stiffness_occurrence,
            'TNS (adaptive) = {0.tns:.3g}',
            id='occurrence',
        ),
        pytest.param(
            PROPORTION,
            stiffness_proportion,
            '∬p̂ (adaptive) = {0.proportion:.3g}',
            id='proportion',
        ),
    ],
)
def test_maps_show_the_definition(runs, measure, share, total):
    shown = [(run.nsi, run.trajectories.stages) for run in runs[1:3]]
    m1, m2 = degree_axes(shown)
    cells = drawn(degrees_figure(runs[1:3], measure), 'rect mark')
    grids = [share(*each, m1, m2) for each in shown]
    # Cells of 0 are the ground; the others follow each other, M2 by M2.
    wanted = np.concatenate([grid[grid > 0] for grid in grids])
    np.testing.assert_allclose(
        numbers(cells, measure.symbol), wanted, rtol=1e-4
    )
    ends = np.concatenate(
        [np.stack(np.nonzero(grid), 1) + 1 for grid in grids]
    )
    np.testing.assert_allclose(
        numbers(cells, 'right'), ends[:, 0] * 2 * m1[0], rtol=1e-3
    )
    np.testing.assert_allclose(
        numbers(cells, 'high'), ends[:, 1] * 2 * m2[0], rtol=1e-3
    )
    # Some fonts would set the mark over the next letter.
    assert not any(map(unicodedata.combining, measure.symbol))
    assert total.format(runs[1]) in texts(degrees_figure(runs[1:3], measure))
    flat = flat_run(runs[2])
    assert flat.trajectories.single_block_stages and flat.tns == 0
    assert (
        texts(degrees_figure([flat, *runs[1:3]], OCCURRENCE)).count(
            'no sample is stiff'
        )
        == 1
    )


def test_figure_3(run):
    blocks = run.trajectories.blocks
    figure = trajectory_figure([run])
    means = drawn(figure, 'point')
    np.testing.assert_allclose(
        numbers(means, 'NSI (adaptive)'), run.nsi.mean(0), rtol=1e-4
    )
    assert [mark['block'] for mark in means] == blocks
    spans = drawn(figure, 'rect mark')
    assert numbers(spans, 'recorded block').tolist() == [0.5, 2.5, 4.5]
    assert numbers(spans, 'end').tolist() == [2.5, 4.5, 6.5]
    # A line is told by its first point.
    starts = {mark.get('sample'): mark for mark in drawn(figure, 'line mark')}
    for sample in spread_indices(len(run.nsi), 6):
        assert float(starts[str(sample)]['NSI (adaptive)']) == pytest.approx(
            run.nsi[sample, 0], rel=1e-4
        )
    (band,) = drawn(figure, 'area mark')
    assert float(band['high']) == pytest.approx(
        np.quantile(run.nsi[:, 0], 0.9), rel=1e-4
    )
    assert {'stage 1', 'stage 2', 'stage 3', 'mean', *blocks} <= set(
        texts(figure)
    )


def test_networks_beside_each_other_share_a_scale(run):
    """Every label of the axis of NSI stands at both panels."""
    larger = changed(run, adaptive=3 * run.trajectories.adaptive)
    labels = Counter(
        text
        for text in texts(trajectory_figure([run, larger]))
        if text.replace('.', '').isdigit()
    )
    assert len(labels) > 2 and {*labels.values()} == {2}


def transformer(run):
    """The run as a Transformer of three blocks would give it."""
    return changed(
        run,
        stages=[0] * 6,
        blocks=[
            f'vit.blocks.{k}.{step}_step'
            for k in (1, 2, 3)
            for step in ('attn', 'mlp')
        ],
    )


def test_a_transformer_has_a_line_for_each_kind_of_step(run):
    of_two = transformer(run)
    figure = trajectory_figure([of_two, run])
    # A line is told by its first point: of a mean, that of its kind.
    starts = {
        mark['what']: float(mark['NSI (adaptive)'])
        for mark in drawn(figure, 'line mark')
        if 'mean' in mark['what']
    }
    mean = run.nsi.mean(0)
    assert starts == {
        'mean, attn_step': pytest.approx(mean[0], rel=1e-4),
        'mean, mlp_step': pytest.approx(mean[1], rel=1e-4),
        'mean, others': pytest.approx(mean[0], rel=1e-4),
    }
    singles = [m for m in drawn(figure, 'line mark') if 'sample' in m]
    assert len(singles) == 3 * 6
    assert {*starts} <= {*texts(figure)}
    lines = drawn(overlay_figure([of_two, of_two], ''), 'line mark')
    assert len(lines) == 2
    assert len(drawn(overlay_figure([run], ''), 'line mark')) == 1


def highest_pixel(run, values):
    """The row in which the mean of NSI begins, without its points."""
    nsi = np.tile(np.float32(values), (len(run.nsi), 1))
    spec = overlay_figure([changed(run, adaptive=nsi)], '').to_dict()
    line = spec['concat'][0]['layer'][-1]
    line['mark'] = dict(line['mark'], point=False, strokeWidth=6)
    line['encoding']['y']['scale'] = dict(domain=[0, 0.2])
    png = vl_convert.vegalite_to_png(spec)
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert('RGB')).astype(int)
    blue = [int(COLORS[0][i : i + 2], 16) for i in (1, 3, 5)]
    return np.flatnonzero((abs(pixels - blue) < 40).all(2).any(1))[0]


def test_a_zigzag_is_as_high_as_its_values(run):
    """As a level line of its highest value; a mitre juts out by 17 pixels."""
    zigzag = highest_pixel(run, [0, 0.1] * 3)
    assert abs(zigzag - highest_pixel(run, [0.1] * 6)) <= 1


def test_figure_10(runs):
    points = drawn(overlay_figure(runs, 'title'), 'point')
    np.testing.assert_allclose(
        numbers(points, 'mean NSI'),
        np.ravel([run.nsi.mean(0) for run in runs]),
        rtol=1e-4,
    )
    assert [(mark['run'], mark['recorded block']) for mark in points] == [
        (run.label, place) for run in runs for place in '123456'
    ]


def test_figure_7(runs):
    mixed = [
        *runs[:5],
        replace(runs[5], accuracy=None),
        replace(runs[1], accuracy=replace(runs[1].accuracy, metric='mAP')),
    ]
    groups = runs_by_metric(mixed)
    assert groups == {
        'accuracy/top1, val split': mixed[:5],
        'mAP, val split': mixed[6:],
    }
    assert compared_runs(mixed) == {'accuracy/top1, val split': mixed[:5]}
    settings = {**runs[0].trajectories.settings, 'split': 'test'}
    assert list(runs_by_metric([changed(runs[0], settings=settings)])) == [
        'accuracy/top1, val split; TNS, test split'
    ]
    figure = ranking_figure(groups)
    points = drawn(figure, 'point')
    np.testing.assert_allclose(
        numbers(points, 'TNS'),
        [*(run.tns for run in mixed[:5]), mixed[6].tns],
        rtol=1e-4,
    )
    bars = drawn(figure, 'rule mark')
    ends = [run.tns_interval for run in (*mixed[:5], mixed[6])]
    for k, end in enumerate(('95 % from', 'to')):
        np.testing.assert_allclose(
            numbers(bars, end), [each[k] for each in ends], rtol=1e-4
        )
    assert [mark['model'] for mark in points] == [
        'plain',
        'plain',
        'se',
        'se',
        'stepnet',
        'plain',
    ]
    assert rank_correlation(mixed[:5]) == correlate_ranks(
        [run.tns for run in mixed[:5]],
        [run.accuracy.value for run in mixed[:5]],
        'runs',
    )
    for text in (*groups, 'plain', 'se', 'stepnet', 'mAP'):
        assert text in texts(figure)


def test_figure_9(run):
    step = run.trajectories.step_mean
    step = step.mean(0) + 100 * (step - step.mean(0))  # gates that move far
    run = changed(run, step_mean=step)
    recorded = run.trajectories
    figure = attention_figure(run)
    points = drawn(figure, 'point')
    # A block after the other, each in a panel of its own.
    np.testing.assert_allclose(
        numbers(points, 'NSI'), run.nsi.T.ravel(), rtol=1e-4
    )
    np.testing.assert_allclose(
        numbers(points, 'attention value'),
        recorded.step_mean.T.ravel(),
        rtol=1e-6,
    )
    correlations = [
        np.corrcoef(run.nsi[:, k], recorded.step_mean[:, k])[0, 1]
        for k in range(6)
    ]
    deviations = recorded.step_mean.std(0)
    assert (deviations > 1e-3).all()
    bars = drawn(figure, 'rect mark')
    np.testing.assert_allclose(
        numbers(bars, "Pearson's r"), correlations, rtol=1e-3
    )
    shown = texts(figure)
    for block, deviation, r in zip(recorded.blocks, deviations, correlations):
        assert block in shown
        assert f'deviation {deviation:.2g}, r = {r:.2f}' in shown
    few = attention_figure(run, 10)
    assert len(drawn(few, 'point')) == 60
    # Blocks without attention, as in a stage that is all projected.
    step = recorded.step_mean.copy()
    step[:, :2] = 1
    figure = attention_figure(changed(run, step_mean=step), 9)
    assert [mark['name'] for mark in drawn(figure, 'point')] == list(
        np.repeat(recorded.blocks[2:], 9)
    )
    assert len(drawn(figure, 'rect mark')) == 4  # r of the others is NaN


def test_gates_near_1_are_drawn_as_recorded(run):
    """They deviate by 1e-5: five digits of 1 would be two values."""
    recorded = run.trajectories
    generator = np.random.default_rng(0)
    step = 1 + 1e-5 * generator.standard_normal((40, 6))
    slow = changed(
        run,
        step_mean=step,
        blocks=[f'net.backbone.{block}' for block in recorded.blocks],
    )
    figure = attention_figure(slow)
    points = drawn(figure, 'point')
    np.testing.assert_allclose(
        numbers(points, 'attention value − 1'.replace('−', '-')),
        slow.trajectories.step_mean.T.ravel() - 1,
        rtol=1e-6,
    )
    shown = texts(figure)
    # Panels share a range in which such a deviation is seen to be small.
    assert shown.count('−0.001') == shown.count('0.001') == 6
    assert not any('r = ' in text for text in shown)
    assert not drawn(figure, 'rect mark') and not drawn(figure, 'area mark')
    assert {*recorded.blocks} <= {*shown}
    assert not any('backbone' in text for text in shown)
    # One that moves far is drawn beside them, and has its correlation.
    step[:, 0] = generator.random(40)
    figure = attention_figure(changed(slow, step_mean=step))
    points = drawn(figure, 'point')
    np.testing.assert_allclose(
        numbers(points, 'attention value'),
        step.astype(np.float32).T.ravel(),
        rtol=1e-6,
    )
    assert sum('r = ' in text for text in texts(figure)) == 1
    assert len(drawn(figure, 'rect mark')) == 1


def test_training(run):
    training = checkpoints(run, epoch=[1, 2, 11])
    figure = training_figure('a name', training, 'adaptive')
    np.testing.assert_allclose(
        numbers(drawn(figure, 'point'), 'TNS'),
        [k * run.tns for k in range(3)],
        rtol=1e-3,
        atol=1e-6,
    )
    cells = drawn(figure, 'rect mark')
    names = block_names(run.trajectories.blocks)
    assert [(mark['block'], mark['step']) for mark in cells[2:4]] == [
        (names[0], '11'),
        (names[1], '1'),
    ]
    np.testing.assert_allclose(
        numbers(cells, 'mean NSI'),
        np.outer(run.nsi.mean(0), range(3)).ravel(),
        rtol=1e-3,
        atol=1e-6,
    )


def test_block_scores(tmp_path):
    scores = {
        'ablation': {'a.0': 0.5, 'a.1': 0.1, 'a.2': 0.2, 'a.3': 0.3},
        'NSI': {'a.1': 2.0, 'a.2': 1.0, 'a.3': 3.0},
    }
    figure = block_scores_figure(scores, 'a network')
    bars = drawn(figure, 'rect mark')
    assert numbers(bars, 'score').tolist() == [0.5, 0.1, 0.2, 0.3, 2, 1, 3]
    assert [mark['block'] for mark in bars[4:]] == ['a.1', 'a.2', 'a.3']
    # Ranks 2, 1, 3 against 1, 2, 3: 1 - 6 · 2 / 24.
    shown = texts(figure)
    assert 'NSI, Spearman ρ = 0.50 over 3 of 4 blocks' in ' '.join(shown)
    assert 'a network' in shown and shown.count('not recorded') == 1
    save_block_scores(scores, tmp_path / 'blocks.pdf')
    pdf = (tmp_path / 'blocks.pdf').read_bytes()
    assert pdf.startswith(b'%PDF') and b'/Type3' not in pdf


@pytest.mark.parametrize(
    'blocks, names',
    [
        pytest.param(
            ['net.stages.0.blocks.1', 'net.stages.3.blocks.1'],
            ['stages.0.blocks.1', 'stages.3.blocks.1'],
            id='stages of one name',
        ),
        pytest.param(
            ['a.layers.1.attention', 'a.layers.1.mlp'],
            ['attention', 'mlp'],
            id='parts of a layer',
        ),
        pytest.param(
            ['layer1.1', 'layer2.1'], ['layer1.1', 'layer2.1'], id='stages'
        ),
        pytest.param(['0.1', '0.2'], ['0.1', '0.2'], id='numbers'),
        pytest.param(['a.b.1'], ['a.b.1'], id='one block'),
        pytest.param(
            ['layers.1', 'layers.1.mlp'],
            ['layers.1', 'layers.1.mlp'],
            id='a block and its part',
        ),
    ],
)
def test_names_of_blocks_are_distinct(blocks, names):
    assert block_names(blocks) == names


@pytest.mark.parametrize('index, figures', [(0, '236'), (2, '2369')])
def test_files_of_a_recording(runs, tmp_path, index, figures):
    paths = save_stiffness_figures(
        runs[index].trajectories, tmp_path / 'new', 'stiffness_val_epoch_2'
    )
    assert [path.name for path in paths] == [
        f'stiffness_val_epoch_2_figure_{n}.png' for n in figures
    ]
    for path in paths:
        pixels = np.asarray(Image.open(path).convert('RGB')).reshape(-1, 3)
        assert len(np.unique(pixels, axis=0)) > 20
        assert (pixels != 255).any(1).mean() > 0.02


def test_files_of_a_report(runs, tmp_path):
    one = part_of(runs[2], samples=[0])  # nothing varies over its samples
    names = [
        path.name
        for path in save_report_figures(
            [*runs[:4], one], tmp_path, format='svg'
        )
    ]
    assert names == [
        f'figure_{name}.svg'
        for name in (
            2,
            3,
            6,
            7,
            '9_run_03',
            '9_run_04',
            '10_set_01',
            '10_set_02',
            '10_set_03',
        )
    ]
    # Text stays text.
    assert all(
        f'>{name}</text>' in (tmp_path / 'figure_3.svg').read_text('utf-8')
        for name in one.trajectories.blocks
    )


def test_a_converter_that_aborts_is_an_error(tmp_path):
    chart = (
        alt.Chart(alt.InlineData(values=[{}]))
        .mark_point()
        .properties(width=1e6, height=1e6)
    )
    with pytest.raises(RuntimeError, match='figures cannot be drawn'):
        save_charts({tmp_path / 'a.png': chart})
    with pytest.raises(ValueError, match='png, svg, pdf, got'):
        save_charts({tmp_path / 'a.eps': chart})
