import json
import re

import numpy as np
import pytest
from mmengine.model import BaseTTAModel

from mmstepnet.stiffness import (
    FIELDS,
    MEANS,
    READINGS,
    Trajectories,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from tests.programs import run_ranks
from tests.test_engine.stiffness_job import (
    SAMPLES,
    VAL_IMAGES,
    backend_lines,
    digits_runner,
    log_text,
    no_hooks,
    offline,
    scalars,
)


@pytest.mark.parametrize('split', ['val', 'test'])
def test_classification(tmp_path, split):
    runner = digits_runner(tmp_path, hook=dict(figures=True))
    metrics = getattr(runner, split)()
    assert no_hooks(runner.model)
    path, = (tmp_path / 'stiffness').glob('*.npz')
    assert path.name == f'stiffness_{split}.npz'
    record = Trajectories.load(path)
    recorder = offline(runner, runner.val_dataloader)
    for name, value in recorder.record.items():
        assert len(value) == VAL_IMAGES
        np.testing.assert_allclose(
            getattr(record, name), value, rtol=1e-6)
    assert record.stages.tolist() == recorder.stages.tolist()
    assert record.blocks == recorder.blocks
    assert record.excluded == recorder.excluded
    assert record.blocks[0] == 'backbone.layer1.1'
    settings = record.settings
    assert settings['model'] == 'resnet20_stepnet_digits'
    assert (settings['split'], settings['reading'],
            settings['dataset_size']) == (split, 'adaptive', VAL_IMAGES)
    assert settings['metrics'] == pytest.approx(metrics)

    nsi = recorder.nsi.double()
    expected = {
        'stiffness/tns':
        total_neural_stiffness(nsi, recorder.stages).mean().item(),
        'stiffness/p_hat':
        total_stiffness_proportion(nsi, recorder.stages).mean().item(),
        'stiffness/nsi':
        nsi.mean().item(),
        **{
            f'stiffness/tns_{reading}' + ('_all' if mu == 'all' else ''):
            total_neural_stiffness(recorder.record[reading], recorder.stages,
                                   mu).mean().item()
            for mu in MEANS for reading in READINGS
        }
    }
    assert len(set(expected.values())) == len(expected) - 1
    assert expected['stiffness/tns'] == expected['stiffness/tns_adaptive']
    assert min(expected.values()) > 0
    for name, value in expected.items():
        assert scalars(runner)[f'{split}/{name}'] == pytest.approx(
            value, rel=1e-6)
        # In the epoch's log line, with the metrics.
        assert re.search(
            fr'Epoch\({split}\).*accuracy/top1.*{name}: {value:.4f}|'
            fr'Epoch\({split}\).*{name}: {value:.4f}.*accuracy/top1',
            log_text(tmp_path))
    lines = backend_lines(tmp_path)
    shown = {k: v for line in lines for k, v in line.items()}
    for name, value in expected.items():
        assert shown[name] == pytest.approx(value, rel=1e-6)
    for block, value in zip(recorder.blocks, nsi.mean(0).tolist()):
        assert shown[f'stiffness/nsi/{block}'] == pytest.approx(
            value, rel=1e-6)
    assert list((tmp_path / 'stiffness').glob('*.png'))


def test_ranks_equal_one_process(tmp_path):
    world = 2
    codes, outputs = run_ranks(
        world, '-m', 'tests.test_engine.stiffness_job', tmp_path / 'ranks')
    assert codes == [0] * world, outputs[0][-3000:]
    for run, samples in enumerate(SAMPLES):
        size = samples or VAL_IMAGES
        assert size % world
        runner = digits_runner(
            tmp_path / 'one' / str(samples), hook=dict(max_samples=samples))
        runner.val()
        one, many = (
            Trajectories.load(tmp_path / which / str(samples) /
                        'stiffness/stiffness_val.npz')
            for which in ('one', 'ranks'))
        assert one.adaptive.shape == (size, 6)
        for name in FIELDS:
            np.testing.assert_allclose(
                getattr(many, name), getattr(one, name), rtol=2e-6)
        # Accuracy is over all images on either side.
        assert many.settings == one.settings
        assert many.structure == one.structure
        assert many.excluded == one.excluded
        for output in outputs:  # on every rank
            printed = [
                json.loads(line) for line in output.splitlines()
                if line.startswith('{"val/')
            ]
            assert printed[run] == pytest.approx(scalars(runner), rel=1e-6)


def test_tests_only(tmp_path):
    runner = digits_runner(tmp_path, hook=dict(interval=None))
    runner.val()
    assert not scalars(runner) and not list(tmp_path.rglob('*.npz'))
    runner.test()
    assert [p.name for p in tmp_path.rglob('*.npz')] == ['stiffness_test.npz']


class Augmented(BaseTTAModel):
    """MMEngine's model around another, on images as they are and flipped."""

    def test_step(self, data):
        flipped = dict(data, inputs=[x.flip(-1) for x in data['inputs']])
        return super().test_step({
            key: [data[key], flipped[key]] for key in data})

    def merge_preds(self, found):
        return [sample[0] for sample in found]


def test_of_samples_that_pass_twice_the_first_is_taken(tmp_path):
    runners = [digits_runner(tmp_path / name) for name in ('once', 'twice')]
    runners[1].model = Augmented(runners[1].model)
    for runner in runners:
        runner.test()
        assert no_hooks(runner.model)
    once, twice = (Trajectories.load(
        tmp_path / name / 'stiffness/stiffness_test.npz')
        for name in ('once', 'twice'))
    np.testing.assert_array_equal(twice.adaptive, once.adaptive)
    assert twice.blocks == once.blocks and len(twice) == VAL_IMAGES
    said = 'measures the first pass of each sample'
    assert log_text(tmp_path / 'twice').count(said) == 1
    assert said not in log_text(tmp_path / 'once')
