import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmdet.registry import MODELS as DET_MODELS
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from mmstepnet.engine import StiffnessHook
from mmstepnet.stiffness import (
    TrajectoryRecorder,
    load_record,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from tests.test_engine.stiffness_job import (
    ROOT,
    SAMPLES,
    VAL_IMAGES,
    digits_runner,
)
from tests.utils import free_port, not_on_torch_21, perturb


def no_hooks(model):
    return not any(
        m._forward_hooks or m._forward_pre_hooks
        or getattr(m, '_observers', None) for m in model.modules()) and not {
            'val_step', 'test_step', 'train_step'
        } & set(model.__dict__)


def offline(runner, loader):
    """The recorder alone, over the runner's own data, batch by batch."""
    model = runner.model
    model.eval()
    with TrajectoryRecorder(model) as recorder, torch.no_grad():
        for batch in loader:
            model.test_step(batch)
    return recorder


def scalars(runner):
    return {
        k: v.current()
        for k, v in runner.message_hub.log_scalars.items() if 'stiffness' in k
    }


def backend_lines(work_dir):
    paths = list(work_dir.glob('*/vis_data/scalars.json'))
    return [
        json.loads(line) for path in paths
        for line in path.read_text().splitlines()
    ]


def log_text(work_dir):
    return ''.join(p.read_text() for p in work_dir.glob('*/*.log'))


@pytest.mark.parametrize('split', ['val', 'test'])
def test_classification(tmp_path, split):
    runner = digits_runner(tmp_path, hook=dict(figures=True))
    metrics = getattr(runner, split)()
    assert no_hooks(runner.model)
    path, = (tmp_path / 'stiffness').glob('*.npz')
    assert path.name == f'stiffness_{split}.npz'
    record = load_record(path)
    recorder = offline(runner, runner.val_dataloader)
    for name, value in recorder.record.items():
        assert len(value) == VAL_IMAGES
        np.testing.assert_allclose(record[name], value, rtol=1e-6)
    assert record['stages'].tolist() == recorder.stages.tolist()
    assert record['blocks'].tolist() == recorder.blocks
    assert record['excluded'].tolist() == recorder.excluded
    assert record['blocks'][0] == 'backbone.layer1.1'
    settings = record['settings']
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
        nsi.mean().item()
    }
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


def test_detection(tmp_path):
    """A Faster R-CNN with a host's backbone, images of different sizes."""
    cfg = Config.fromfile(
        ROOT / 'configs/_base_/models/faster_rcnn_r18_small.py')
    backbone = dict(type='ResNet', depth=34, _delete_=True)
    cfg.merge_from_dict(dict(model=dict(backbone=backbone)))

    class Pictures(torch.utils.data.Dataset):
        metainfo = dict(classes=tuple('abc'))

        def __len__(self):
            return 5

        def __getitem__(self, index):
            size = (64 + 16 * index, 96)
            generator = torch.Generator().manual_seed(index)
            image = torch.randint(
                0, 255, (3, *size), dtype=torch.uint8, generator=generator)
            sample = DetDataSample(
                metainfo=dict(
                    img_id=index, img_shape=size, ori_shape=size,
                    scale_factor=(1., 1.)))
            return dict(inputs=image, data_samples=sample)

    class Count(BaseMetric):

        def process(self, data_batch, data_samples):
            self.results += list(data_samples)

        def compute_metrics(self, results):
            return dict(count=len(results))

    with DefaultScope.overwrite_default_scope('mmdet'):
        model = perturb(DET_MODELS.build(cfg.model))
    for module in model.modules():
        if hasattr(module, 'running_var'):
            module.running_var.mul_(4)
    runner = Runner(
        model,
        str(tmp_path),
        val_dataloader=dict(
            batch_size=2,
            dataset=Pictures(),
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='pseudo_collate')),
        val_evaluator=Evaluator(Count()),
        val_cfg=dict(),
        default_scope='mmdet',
        custom_hooks=[
            dict(type='mmstepnet.StiffnessHook', step='unit', figures=False)
        ],
        experiment_name='detection')
    assert runner.val()['count'] == 5
    assert no_hooks(runner.model)
    record = load_record(tmp_path / 'stiffness/stiffness_val.npz')
    assert record['unit'].shape == (5, 12)
    assert record['settings']['reading'] == 'unit'
    assert record['settings']['model'] == 'FasterRCNN'
    recorder = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(
        record['unit'], recorder.record['unit'], rtol=1e-6)
    assert set(scalars(runner)) == {
        'val/stiffness/tns', 'val/stiffness/p_hat', 'val/stiffness/nsi'
    }


def run_ranks(world, work_dir):
    port = free_port()
    jobs = [
        subprocess.Popen(
            [sys.executable, '-m', 'tests.test_engine.stiffness_job',
             str(rank), str(world), port, str(work_dir)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True) for rank in range(world)
    ]
    outputs = []
    for job in jobs:
        try:
            outputs.append(job.communicate(timeout=900)[0])
        except subprocess.TimeoutExpired:
            for other in jobs:
                other.kill()
            raise
    return [job.returncode for job in jobs], outputs


@pytest.mark.parametrize('world', [2, 3])
def test_ranks_equal_one_process(tmp_path, world):
    codes, outputs = run_ranks(world, tmp_path / 'ranks')
    assert codes == [0] * world, outputs[0][-3000:]
    for run, samples in enumerate(SAMPLES):
        size = samples or VAL_IMAGES
        assert size % world
        runner = digits_runner(
            tmp_path / 'one' / str(samples), hook=dict(max_samples=samples))
        runner.val()
        one, many = (
            load_record(tmp_path / which / str(samples) /
                        'stiffness/stiffness_val.npz')
            for which in ('one', 'ranks'))
        assert one['adaptive'].shape == (size, 6)
        for name, value in one.items():
            if name == 'settings':
                # Accuracy is over all images on either side.
                assert many[name] == value
            elif value.dtype.kind == 'f':
                np.testing.assert_allclose(many[name], value, rtol=2e-6)
            else:
                assert (many[name] == value).all()
        for output in outputs:  # on every rank
            printed = [
                json.loads(line) for line in output.splitlines()
                if line.startswith('{"val/')
            ]
            assert printed[run] == pytest.approx(scalars(runner), rel=1e-6)


def test_max_samples_stops_measuring(tmp_path):
    runner = digits_runner(tmp_path, hook=dict(max_samples=7))
    calls = []
    begin = TrajectoryRecorder.start

    def start(self):
        calls.append(1)
        return begin(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrajectoryRecorder, 'start', start)
        runner.val()
    assert len(calls) == 2  # batches of five
    record = load_record(tmp_path / 'stiffness/stiffness_val.npz')
    assert record['settings']['dataset_size'] == 7
    recorder = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(
        record['adaptive'], recorder.nsi[:7], rtol=1e-6)


class Watch(Hook):
    """Sees after each iteration whether anything is left on the model."""
    priority = 'LOWEST'

    def __init__(self):
        self.clean = []

    def after_val_iter(self, runner, *args, **kwargs):
        self.clean.append(no_hooks(runner.model))

    def after_train_iter(self, runner, *args, **kwargs):
        self.clean.append(no_hooks(runner.model))


def test_tests_only(tmp_path):
    runner = digits_runner(tmp_path, hook=dict(interval=None))
    runner.val()
    assert not scalars(runner) and not list(tmp_path.rglob('*.npz'))
    runner.test()
    assert [p.name for p in tmp_path.rglob('*.npz')] == ['stiffness_test.npz']


def test_training_with_ema_and_interval(tmp_path):
    """The EMA weights are measured; nothing of the hook is in their copy."""
    runner = digits_runner(
        tmp_path,
        images=10,
        hook=dict(interval=2, train_interval=2),
        options={
            'train_cfg.max_epochs': 3,
            'train_cfg.val_interval': 1,
            'param_scheduler': [],
            'optim_wrapper.optimizer.lr': 0.05,
            'default_hooks.logger.interval': 1,
            'custom_hooks': [
                dict(type='EMAHook', momentum=0.3, update_buffers=True)
            ]
        })
    watch = Watch()
    runner.register_hook(watch)
    runner.train()
    assert watch.clean and all(watch.clean)
    files = sorted(p.name for p in (tmp_path / 'stiffness').glob('*.npz'))
    assert files == ['stiffness_val_epoch_2.npz']
    record = load_record(tmp_path / 'stiffness' / files[0])
    assert record['settings']['epoch'] == 2
    assert record['settings']['iter'] == 6
    ema = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook')
    assert no_hooks(ema.ema_model.module) and no_hooks(runner.model)

    # The third validation was not measured, and does not repeat the second.
    validations = dict(
        re.findall(r'Epoch\(val\) \[(\d)\]\[2/2\](.*)', log_text(tmp_path)))
    assert {k: 'stiffness/tns' in v for k, v in validations.items()} == {
        '1': False, '2': True, '3': False}
    # Training: every second iteration over all epochs.
    trained = runner.message_hub.log_scalars['train/stiffness/nsi']
    values, _ = trained.data
    assert len(values) == 9 // 2 and (values > 0).all()


def test_a_resumed_run_counts_on(tmp_path):
    """Every second validation of the run, not of the process."""
    for epochs in (1, 2, 3, 4):
        digits_runner(
            tmp_path,
            images=5,
            hook=dict(interval=2),
            options={
                'train_cfg.max_epochs': epochs,
                'train_cfg.val_interval': 1,
                'param_scheduler': [],
                'resume': True,
            }).train()
    files = sorted(p.name for p in (tmp_path / 'stiffness').glob('*.npz'))
    assert files == ['stiffness_val_epoch_2.npz', 'stiffness_val_epoch_4.npz']


def test_ema_weights_are_measured(tmp_path):
    runner = digits_runner(
        tmp_path,
        images=10,
        options={
            'train_cfg.max_epochs': 1,
            'train_cfg.val_interval': 1,
            'param_scheduler': [],
            'optim_wrapper.optimizer.lr': 0.05,
            'custom_hooks': [
                dict(type='EMAHook', momentum=0.3, update_buffers=True)
            ]
        })
    runner.train()
    record = load_record(tmp_path / 'stiffness/stiffness_val_epoch_1.npz')
    raw = offline(runner, runner.val_dataloader)
    assert not np.allclose(record['adaptive'], raw.nsi, rtol=1e-3)
    ema = next(h for h in runner.hooks if type(h).__name__ == 'EMAHook')
    runner.model.load_state_dict(ema.ema_model.module.state_dict())
    averaged = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(record['adaptive'], averaged.nsi, rtol=1e-5)


@not_on_torch_21("does not compile mmengine's train_step")
def test_training_with_checkpointing_amp_and_compile(tmp_path):
    """``with_cp`` and the compiled ``train_step`` yield one value a batch."""
    runner = digits_runner(
        tmp_path,
        images=10,
        hook=dict(train_interval=1),
        options={
            'model.backbone.with_cp': True,
            'train_cfg.max_epochs': 1,
            'train_cfg.val_interval': 1,
            'val_cfg.fp16': True,
            'param_scheduler': [],
            'compile': dict(backend='eager'),
        })
    watch = Watch()
    runner.register_hook(watch)
    compiled = []

    class Compiled(Hook):

        def after_train_iter(self, runner, *args, **kwargs):
            compiled.append('train_step' in runner.model.__dict__)

    watch.after_train_iter = lambda *args, **kwargs: None
    runner.register_hook(Compiled())
    runner.train()
    assert compiled == [True] * 3  # it was put back
    values, _ = runner.message_hub.log_scalars['train/stiffness/nsi'].data
    assert len(values) == 3 and (values > 0).all()
    record = load_record(tmp_path / 'stiffness/stiffness_val_epoch_1.npz')
    # Validation ran in half precision, on float32 norms.
    full = offline(runner, runner.val_dataloader)
    assert not np.array_equal(record['adaptive'], full.nsi)
    np.testing.assert_allclose(
        record['adaptive'], full.nsi, rtol=0.1, atol=0.02)
    torch._dynamo.reset()


class Break(Hook):

    def __init__(self, where):
        self.where = where

    def before_val_iter(self, runner, batch_idx, *args, **kwargs):
        if batch_idx != 2:
            return
        model = runner.model
        part = dict(
            data=model.data_preprocessor,
            backbone=model.backbone.layer2[1],
            head=model.head)[self.where]

        def fail(*args):
            raise ArithmeticError(self.where)

        self.handle = part.register_forward_pre_hook(fail)


@pytest.mark.parametrize('where', ['data', 'backbone', 'head', 'metric'])
def test_an_exception_in_validation_leaves_nothing_behind(tmp_path, where):
    runner = digits_runner(tmp_path)
    if where == 'metric':
        evaluator = runner.val_loop.evaluator
        process = evaluator.process

        def fail(*args, **kwargs):
            raise ArithmeticError(where)

        evaluator.process = fail
    else:
        hook = Break(where)
        runner.register_hook(hook)
    with pytest.raises(ArithmeticError, match=where):
        runner.val()
    if where == 'metric':
        evaluator.process = process
    else:
        hook.handle.remove()
        hook.where = None
        runner._hooks.remove(hook)
    assert no_hooks(runner.model)
    assert not (tmp_path / 'stiffness').exists()
    # And the next validation is right.
    runner.val()
    record = load_record(tmp_path / 'stiffness/stiffness_val.npz')
    recorder = offline(runner, runner.val_dataloader)
    np.testing.assert_allclose(record['adaptive'], recorder.nsi, rtol=1e-6)


def test_samples_that_pass_twice_are_refused(tmp_path):
    runner = digits_runner(tmp_path)
    predict = runner.model.predict

    def twice(inputs, *args, **kwargs):
        predict(inputs, *args, **kwargs)
        return predict(inputs, *args, **kwargs)

    runner.model.predict = twice
    with pytest.raises(RuntimeError, match='saw 10 samples.*returned 5'):
        runner.val()
    assert no_hooks(runner.model)


def test_a_loader_that_drops_samples_is_refused(tmp_path):
    runner = digits_runner(
        tmp_path, options={'val_dataloader.drop_last': True})
    with pytest.raises(ValueError, match='drop_last=False'):
        runner.val()


def test_empty_data_set_and_models_without_blocks(tmp_path):
    runner = digits_runner(tmp_path)
    runner.val_loop.dataloader = torch.utils.data.DataLoader([])
    with pytest.raises(ValueError, match='the data set is empty'):
        runner.val()
    assert no_hooks(runner.model)
    runner = digits_runner(
        tmp_path, options={'model.backbone': dict(
            type='LeNet5', num_classes=-1, _delete_=True)})
    with pytest.raises(ValueError, match='no residual block that is known'):
        runner.val()
    assert no_hooks(runner.model)


def test_networks_of_two_blocks_a_stage_are_told(tmp_path):
    runner = digits_runner(
        tmp_path,
        images=3,
        hook=dict(blocks=['layer1.[01]', 'layer2.[01]']))
    runner.val()
    assert scalars(runner)['val/stiffness/tns'] == 0
    assert 'TNS is 0 by definition' in log_text(tmp_path)


@pytest.mark.parametrize('arguments, message', [
    (dict(interval=0), 'interval must be a positive integer, got 0'),
    (dict(max_samples=-3), 'max_samples must be a positive integer, got -3'),
    (dict(train_interval=1.5), 'train_interval must be.*got 1.5'),
    (dict(step='fine'), "one of adaptive, unit, returned, got 'fine'"),
])
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        StiffnessHook(**arguments)
