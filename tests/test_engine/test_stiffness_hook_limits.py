"""Networks, images and loops that the hook has to bear."""

import numpy as np
import pytest

from mmstepnet.stiffness import Trajectories
from tests.test_engine.stiffness_job import (
    digits_runner,
    log_text,
    no_hooks,
    scalars,
)


@pytest.mark.parametrize('value', [float('nan'), 1e30])
def test_images_without_a_finite_index(tmp_path, value):
    """They are left out and named; all other numbers go on."""
    runner = digits_runner(tmp_path)
    plain = digits_runner(tmp_path / 'plain')
    plain.val()
    predict = runner.model.predict
    state = plain.model.state_dict()
    calls = []

    def once(inputs, *args, **kwargs):
        if not calls:
            runner.model.load_state_dict(state)
            inputs = inputs.clone()
            inputs[2] = value
        calls.append(1)
        return predict(inputs, *args, **kwargs)

    runner.model.predict = once
    runner.val()
    assert len(calls) == 8 and no_hooks(runner.model)
    path, = (tmp_path / 'stiffness').glob('*.npz')
    found = Trajectories.load(path)
    wanted = Trajectories.load(
        tmp_path / 'plain/stiffness/stiffness_val.npz')
    np.testing.assert_allclose(
        found.adaptive, np.delete(wanted.adaptive, 2, 0), rtol=1e-6)
    assert found.settings['left_out'] == ['sample 2']
    assert '1 of 37 samples could not be measured' in log_text(tmp_path)


def test_a_loop_that_ends_early_ends_no_job(tmp_path):
    runner = digits_runner(tmp_path)
    runner.val_loop.dataloader.batch_sampler.sampler = range(10)
    assert 'accuracy/top1' in runner.val()
    found = Trajectories.load(tmp_path / 'stiffness/stiffness_val.npz')
    assert len(found) == 10
    assert found.settings['left_out'] == [f'sample {k}' for k in range(10, 37)]


def test_models_without_blocks(tmp_path):
    runner = digits_runner(
        tmp_path, options={
            'model.backbone': dict(type='VGG', depth=11, _delete_=True),
            'model.head.in_channels': 512})
    assert runner.val().keys() == {'accuracy/top1'}
    assert 'no residual step of' in log_text(tmp_path)
    assert no_hooks(runner.model)


def test_networks_of_two_blocks_a_stage_are_told(tmp_path):
    runner = digits_runner(
        tmp_path,
        images=3,
        hook=dict(blocks=['layer1.[01]', 'layer2.[01]']))
    runner.val()
    assert scalars(runner)['val/stiffness/tns'] == 0
    assert 'TNS is 0 by definition' in log_text(tmp_path)
