"""StiffnessHook's figures, as the visualizer's backends are given them."""

import re

import numpy as np
import pytest
from matplotlib.pyplot import imread
from mmengine.registry import VISBACKENDS
from mmengine.visualization import BaseVisBackend

from tests.test_engine.stiffness_job import digits_runner, log_text


@VISBACKENDS.register_module(force=True)
class Remembered(BaseVisBackend):
    """Keeps images; may have lost its network."""

    def __init__(self, save_dir='', error=None):
        super().__init__(save_dir)
        self.error = error
        self.images = {}

    @property
    def experiment(self):
        return self

    def add_image(self, name, image, step=0, **kwargs):
        if self.error:
            raise ConnectionError(self.error)
        self.images[name] = image, step

    def add_nothing(self, *args, **kwargs):
        pass

    def add_scalars(self, *args, **kwargs):
        if self.error:
            raise ConnectionError(self.error)

    _init_env = add_config = add_graph = add_scalar = add_nothing


def run(work_dir, split, *backends):
    runner = digits_runner(
        work_dir, images=5, hook=dict(figures=True), options={
            'visualizer.vis_backends': [
                dict(type='LocalVisBackend'), *backends]})
    getattr(runner, split)()
    return runner


@pytest.mark.parametrize('split', ['val', 'test'])
def test_backends_get_the_files(tmp_path, split):
    runner = run(tmp_path, split, dict(type='Remembered'))
    files = sorted((tmp_path / 'stiffness').glob('*.png'))
    images = runner.visualizer.get_backend('Remembered').images
    assert sorted(images) == [
        f'stiffness/{split}_figure_{number}' for number in (2, 3, 6, 9)]
    for file, name in zip(files, sorted(images)):
        image, step = images[name]
        assert image.dtype == np.uint8 and step == 0
        np.testing.assert_array_equal(
            image, np.rint(imread(file)[..., :3] * 255))
    # The local backend would have copied them.
    assert sorted(tmp_path.rglob('*.png')) == files


def test_a_backend_that_fails_stops_nothing(tmp_path):
    run(tmp_path, 'test', dict(type='Remembered', error='no route to host'))
    assert re.search('cannot save, draw or show .*: ConnectionError: no route '
                     'to host', log_text(tmp_path))
    assert list((tmp_path / 'stiffness').glob('*.npz'))
