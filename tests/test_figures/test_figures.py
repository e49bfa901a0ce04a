from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.text import Text
from PIL import Image

from mmstepnet.figures import (
    save_report_figures,
    save_stiffness_figures,
)
from mmstepnet.figures.attention_values import draw_attention
from mmstepnet.figures.degrees import OCCURRENCE, draw_degrees
from mmstepnet.figures.ranking import draw_ranking
from mmstepnet.figures.style import PAPER_STYLE
from mmstepnet.figures.training import draw_training
from mmstepnet.figures.trajectories import draw_overlay, draw_trajectories
from mmstepnet.stiffness import Trajectories
from mmstepnet.stiffness.training import Checkpoint, Training
from tests.test_figures.conftest import changed, flat_run, part_of


def is_drawn(path):
    """Whether a picture holds more than an empty frame."""
    pixels = np.asarray(Image.open(path).convert('RGB')).reshape(-1, 3)
    return (len(np.unique(pixels, axis=0)) > 20
            and (pixels != 255).any(1).mean() > 0.02)


@pytest.mark.parametrize('index, figures', [(0, '236'), (2, '2369')])
def test_figures_of_a_recording(runs, tmp_path, index, figures):
    paths = save_stiffness_figures(
        runs[index].trajectories, tmp_path / 'new', 'stiffness_val_epoch_2')
    assert [path.name for path in paths] == [
        f'stiffness_val_epoch_2_figure_{n}.png' for n in figures]
    assert all(is_drawn(path) for path in paths)


def test_readings_differ(work_dirs, tmp_path):
    recorded = Trajectories.load(
        work_dirs[2] / 'stiffness' / 'stiffness_val_epoch_2.npz')
    pictures = [
        save_stiffness_figures(
            recorded, tmp_path / reading, 'name', reading)[1].read_bytes()
        for reading in ('adaptive', 'unit')]
    assert pictures[0] != pictures[1]


def test_figures_for_a_paper(run, tmp_path):
    """Text stays text, in fonts that journals take."""
    pdf = save_report_figures([run], tmp_path / 'pdf', format='pdf')[1]
    assert pdf.read_bytes().startswith(b'%PDF')
    assert b'/Subtype /Type3' not in pdf.read_bytes()
    svg = save_stiffness_figures(
        run.trajectories, tmp_path, 'one', format='svg')[1]
    assert svg.name == 'one_figure_3.svg'
    assert all(f'>{name}</text>' in svg.read_text('utf-8')
               for name in run.trajectories.blocks)


def test_one_sample(run, tmp_path):
    one = part_of(run, samples=[0])
    paths = save_stiffness_figures(one.trajectories, tmp_path, 'one')
    assert [path.stem[-1] for path in paths] == list('236')


def test_figures_of_a_report(runs, tmp_path):
    names = [p.name for p in save_report_figures(runs[:4], tmp_path)]
    assert names == [
        'figure_2.png', 'figure_3.png', 'figure_6.png', 'figure_7.png',
        *(f'figure_9_run_0{i}.png' for i in (3, 4)),
        *(f'figure_10_set_0{i}.png' for i in (1, 2, 3)),
    ]
    assert all(is_drawn(tmp_path / name) for name in names)


def long_labels(run):
    return [replace(run, label=f'timm.vit_base_patch16_clip_224.of_{i}_in12k',
                    model=f'a_family_of_networks_number_{i}_of_many')
            for i in range(7)]


def nearly_constant(run):
    """With attention values that differ from the fourth digit on."""
    step = run.trajectories.step_mean
    return changed(run, step_mean=0.26894 + 2e-3 * (step - step.mean()))


def many_blocks(run):
    return changed(part_of(run, blocks=[0] * 50), blocks=[
        f'backbone.stages.{i}.blocks.{i}.attention_step' for i in range(50)])


DRAWINGS = {
    'one trajectory': lambda run: draw_trajectories([run]),
    'small stages': lambda run: draw_trajectories([part_of(
        run, blocks=[0, 2, 4, 4, 4, 4, 4, 4, 4, 4])]),
    'many blocks': lambda run: draw_trajectories(2 * [many_blocks(run)]),
    'an overlay of many blocks': lambda run: draw_overlay(
        [many_blocks(run)], ''),
    'maps': lambda run: draw_degrees(long_labels(run), OCCURRENCE),
    'a flat map': lambda run: draw_degrees([flat_run(run)], OCCURRENCE),
    'attention': lambda run: draw_attention(nearly_constant(run)),
    'overlay': lambda run: draw_overlay(long_labels(run), 'of blocks ' * 20),
    'training': lambda run: draw_training('a training ' * 20, Training(
        'weights', 'adaptive', [f'backbone.stages.{i}.blocks.{i}.mlp_step'
                                for i in range(90)],
        [Checkpoint(f'epoch_{i}_of_many', 0.5, 0.4, 0.6, np.full(90, 0.1 * i))
         for i in range(40)])),
    'ranking': lambda run: draw_ranking({'a data set ' * 20: long_labels(
        run)}),
}


@pytest.mark.parametrize('what', DRAWINGS)
def test_no_text_is_cut_or_overprinted(run, what):
    with rc_context(PAPER_STYLE):
        figure = DRAWINGS[what](run)
        figure.draw_without_rendering()
        # Ticks beyond the ends of an axis are kept, but not drawn.
        beyond = {
            label for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)
            for at, label in zip(axis.get_ticklocs(), axis.get_ticklabels())
            if not min(axis.get_view_interval()) <= at <= max(
                axis.get_view_interval())}
        boxes = [(text.get_text(), text.get_window_extent())
                 for text in figure.findobj(Text) if text.get_visible()
                 and text.get_text().strip() and text not in beyond]
    for text, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text
    for (text, box), (other, other_box) in combinations(boxes, 2):
        assert not box.overlaps(other_box), (text, other)


def test_what_is_not_stiff_is_said(run):
    texts = [t.get_text() for ax in draw_degrees(
        [flat_run(run), run], OCCURRENCE).axes for t in ax.texts]
    assert texts == ['no sample is stiff']
