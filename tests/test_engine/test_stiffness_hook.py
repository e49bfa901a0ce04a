"""What StiffnessHook measures, logs, saves and shows, and what it bears."""

import itertools
import re
from collections import ChainMap

import numpy as np
import pytest
from matplotlib.pyplot import imread
from mmengine.model import BaseTTAModel

from mmstepnet.stiffness import MEANS, READINGS
from tests.test_engine.stiffness_job import (
    VAL_IMAGES,
    digits_runner,
    log_text,
    offline,
    recording,
    scalars,
)
from tests.utils import no_hooks


@pytest.mark.parametrize('split', ['val', 'test'])
def test_classification(tmp_path, split):
    """Both loops alike; figures are drawn of one."""
    figures = split == 'val'
    runner = digits_runner(
        tmp_path,
        hook=dict(figures=figures),
        options={
            'visualizer.vis_backends': [
                dict(type='LocalVisBackend'),
                dict(type='remembered', name='remembered'),
            ]
        },
    )
    metrics = getattr(runner, split)()
    assert no_hooks(runner.model)
    record = recording(tmp_path, split)
    recorder = offline(runner, runner.val_dataloader)
    for name, value in recorder.record.items():
        assert len(value) == VAL_IMAGES
        np.testing.assert_allclose(getattr(record, name), value, rtol=1e-6)
    assert record.stages.tolist() == recorder.stages.tolist()
    assert (record.blocks, record.excluded) == (
        recorder.blocks,
        recorder.excluded,
    )
    assert record.blocks[0] == 'backbone.layer1.1'
    settings = dict(record.settings)
    numbers = settings.pop('metrics')
    assert numbers == pytest.approx(
        {'accuracy/top1': metrics['accuracy/top1']}
    )
    del settings['mmstepnet']
    assert settings == dict(
        model='resnet20_stepnet_digits',
        split=split,
        reading='adaptive',
        dataset_size=VAL_IMAGES,
    )

    expected = {
        'stiffness/tns': record.tns(),
        'stiffness/p_hat': record.proportion(),
        'stiffness/nsi': record.adaptive.mean(),
        **{
            f'stiffness/tns_{reading}'
            + ('_all' if mu == 'all' else ''): record.tns(reading, mu)
            for mu in MEANS
            for reading in READINGS
        },
    }
    assert len(set(expected.values())) == len(expected) - 1
    assert expected['stiffness/tns'] == expected['stiffness/tns_adaptive']
    backend = runner.visualizer.get_backend('remembered')
    shown = dict(
        ChainMap(
            *(call.args[0] for call in backend.add_scalars.call_args_list)
        )
    )
    # Of a test the metrics have it, too, which --out writes.
    assert {*metrics} == {*numbers, *(expected if split == 'test' else ())}
    for name, value in expected.items():
        assert value > 0
        assert metrics.get(name, value) == pytest.approx(value, rel=1e-6)
        assert (
            scalars(runner)[f'{split}/{name}']
            == shown[name]
            == pytest.approx(value, rel=1e-6)
        )
        # In the epoch's log line, with the metrics.
        assert re.search(
            rf'Epoch\({split}\).*{name}: {value:.4f}', log_text(tmp_path)
        )
    assert 'cannot measure' not in log_text(tmp_path)
    for block, value in zip(recorder.blocks, record.adaptive.mean(0)):
        assert shown[f'stiffness/nsi/{block}'] == pytest.approx(
            value, rel=1e-6
        )
    # Backends get the figures; the local one would have copied them.
    files = sorted(tmp_path.rglob('*.png'))
    assert files == sorted((tmp_path / 'stiffness').glob('*.png'))
    calls = [call.args for call in backend.add_image.call_args_list]
    for file, (name, image, step), number in zip(
        files, calls, (2, 3, 6, 9) if figures else (), strict=True
    ):
        assert name == f'stiffness/{split}_figure_{number}'
        assert image.dtype == np.uint8 and step == 0
        np.testing.assert_array_equal(
            image, np.rint(imread(file)[..., :3] * 255)
        )


class Augmented(BaseTTAModel):
    """MMEngine's model around another, on images as they are and flipped."""

    def test_step(self, data):
        flipped = dict(data, inputs=[x.flip(-1) for x in data['inputs']])
        return super().test_step(
            {key: [data[key], flipped[key]] for key in data}
        )

    def merge_preds(self, found):
        return [sample[0] for sample in found]


def test_of_samples_that_pass_twice_the_first_is_taken(tmp_path):
    runners = [digits_runner(tmp_path / name) for name in ('once', 'twice')]
    runners[1].model = Augmented(runners[1].model)
    for runner in runners:
        runner.test()
        assert no_hooks(runner.model)
    once, twice = (
        recording(tmp_path / name, 'test') for name in ('once', 'twice')
    )
    np.testing.assert_array_equal(twice.adaptive, once.adaptive)
    assert twice.blocks == once.blocks and len(twice) == VAL_IMAGES
    said = 'measures the first pass of each sample'
    assert [
        log_text(tmp_path / name).count(said) for name in ('once', 'twice')
    ] == [0, 1]


@pytest.mark.parametrize('value', [float('nan'), 1e30])
def test_images_without_a_finite_index(tmp_path, value):
    """They are left out and named.

    So are those that a loop does not reach or a model passes in parts.
    """
    runner, plain = digits_runner(tmp_path), digits_runner(tmp_path / 'plain')
    plain.val()
    model, state, calls = runner.model, plain.model.state_dict(), []

    def step(data):
        calls.append(1)
        data = model.data_preprocessor(data, False)
        inputs, samples = data['inputs'], data['data_samples']
        if len(calls) == 1:
            model.load_state_dict(state)
            inputs[2] = value
        parts = (0, 1, 5) if len(calls) == 2 else (0, 5)
        return [
            sample
            for a, b in itertools.pairwise(parts)
            for sample in model(inputs[a:b], samples[a:b], 'predict')
        ]

    model.val_step = step
    runner.val_loop.dataloader.batch_sampler.sampler = range(30)
    assert 'accuracy/top1' in runner.val()
    assert len(calls) == 6 and no_hooks(runner.model)
    found, wanted = recording(tmp_path), recording(tmp_path / 'plain')
    np.testing.assert_allclose(
        found.adaptive,
        np.delete(wanted.adaptive[:30], [2, *range(5, 10)], 0),
        rtol=1e-6,
    )
    assert found.settings['left_out'] == [
        f'sample {k}' for k in (2, *range(5, 10), *range(30, VAL_IMAGES))
    ]
    assert '13 of 37 samples could not be measured' in log_text(tmp_path)


def test_networks_without_and_with_too_few_blocks_are_told(tmp_path):
    runner = digits_runner(
        tmp_path / 'vgg',
        images=3,
        options={
            'model.backbone': dict(type='VGG', depth=11, _delete_=True),
            'model.head.in_channels': 512,
        },
    )
    assert runner.val().keys() == {'accuracy/top1'}
    assert 'no residual step of' in log_text(tmp_path / 'vgg')
    assert no_hooks(runner.model)
    runner = digits_runner(
        tmp_path / 'few',
        images=3,
        hook=dict(blocks=['layer1.[01]', 'layer2.[01]']),
    )
    runner.val()
    runner.val()
    found = recording(tmp_path / 'few')
    for name in READINGS:
        assert found.tns(name) == found.proportion(name) == 0
    shown = {key.removeprefix('val/stiffness/') for key in scalars(runner)}
    assert shown == {'nsi', *(f'tns_{name}_all' for name in READINGS)}
    for text in ('TNS is 0 by definition', 'the first block of each stage'):
        assert log_text(tmp_path / 'few').count(text) == 1


def test_after_an_exception_the_next_validation_is_right(tmp_path):
    runner = digits_runner(tmp_path)

    def fail(*args):
        raise ArithmeticError('of the data')

    handle = runner.model.data_preprocessor.register_forward_pre_hook(fail)
    with pytest.raises(ArithmeticError, match='of the data'):
        runner.val()
    handle.remove()
    assert not (tmp_path / 'stiffness').exists()
    runner.val()
    assert no_hooks(runner.model)
    recorder = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(
        recording(tmp_path).adaptive, recorder.nsi, rtol=1e-6
    )
