"""Figures of single blocks, and what is said of Fig. 9."""

import numpy as np

from projects.reproduction.block_figures import draw_blocks
from projects.reproduction.claims import CLAIMS, CORRELATION
from projects.reproduction.columns import Column
from projects.reproduction.findings import find_all
from projects.reproduction.plots import save_plots

from .made_results import save
from .test_curves import Cell, with_curves

STAGES = [0, 0, 0, 1, 1]


def kept(seed, correlation):
    nsi = np.random.default_rng(seed).random(5) + 0.1
    along = {'stage 1': dict(mean=-0.2 - 0.1 * seed, negative=0.75)}
    return dict(stages=STAGES, nsi=nsi.tolist(), step=[1.0] * 5,
                correlation=dict(adaptive=correlation),
                along=dict(adaptive=along))


SE = [kept(0, [-0.9, 0.8, None, 0.1, -0.2]),
      kept(1, [-0.5, 0.6, -0.4, 0.3, 0.3])]
PLAIN = [kept(2, [None] * 5)]


def test_panels():
    figure = draw_blocks(dict(Plain=PLAIN, SE=SE))
    rows, _, first, over = figure.axes
    plain, se, _ = rows.lines  # and the border of the stages
    np.testing.assert_allclose(plain.get_ydata(), PLAIN[0]['nsi'])
    np.testing.assert_allclose(
        se.get_ydata(), np.mean([s['nsi'] for s in SE], 0))
    for line, seed in zip(first.lines, SE, strict=True):
        assert line.get_ydata().tolist() == seed['nsi'][:3]
    offsets = over.collections[0].get_offsets().filled(np.nan)
    np.testing.assert_array_equal(
        offsets[[0, 1, 3, 4]].T, [[1, 2, 4, 5], [-0.9, 0.8, 0.1, -0.2]])
    assert [line.get_xdata()[0] for line in over.lines[1:]] == [3.5]


def test_the_papers_rows_alone_have_the_picture(tmp_path):
    cells = []
    for row in ('SE', 'Other', 'Old'):
        cells.append(Cell('moon', row, row, ('Accuracy', ), {},
                          config=tmp_path / f'{row}.py'))
        stiffness = dict(SE[0], correlation=[0.1] * 5) if row == 'Old' else (
            SE[0])
        save(tmp_path, with_curves(
            0, [60., 70.], [2., 1.], config=row, stiffness=stiffness))
    paths = save_plots(cells, tmp_path, tmp_path / 'out')
    assert [p.name for p in paths if 'blocks' in p.name] == [
        'moon_SE_blocks.png']


def test_no_panel_of_fig_9_is_averaged_away():
    """Blocks of either sign are told beside their mean."""
    found = find_all([Column('small', 'C', {'SE': [
        dict(seed=seed, cfg_options=[], stiffness=each,
             last=dict(epoch=1, metrics={}))
        for seed, each in enumerate(SE)]})])
    finding, = (f for f in found if f.claim.kind == CORRELATION)
    assert finding.claim in CLAIMS
    over, along = finding.comparisons
    np.testing.assert_allclose(over.differences, [0.05, 0.1])
    np.testing.assert_allclose(along.differences, [0.2, 0.3])
    assert finding.lines == (
        'SE, over images, block by block: r from -0.90 to +0.80, below 0 in '
        '1, 2 of 3 blocks, by seed',
        'SE, along trajectories: r below 0 for 75%, 75% of the images, by '
        'seed')
