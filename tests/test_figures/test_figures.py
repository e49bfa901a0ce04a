import numpy as np
import pytest
from PIL import Image

from mmstepnet.figures import (
    save_report_figures,
    save_stiffness_figures,
)
from mmstepnet.stiffness import Trajectories
from tests.test_figures.conftest import part_of


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
