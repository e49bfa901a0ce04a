"""Bad input to hooks, and runs that go wrong under them."""

import inspect
from itertools import count

import pytest
import torch
import torch.nn as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import ConfigDict
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmpretrain.datasets import BaseDataset, CustomDataset
from torch.utils.data import Dataset

from mmstepnet.jobs.data_check_hook import (
    check_categories,
    check_labels,
    check_not_empty,
    check_order,
)
from mmstepnet.models import StepResNetCIFAR
from mmstepnet.stiffness import Trajectories, TrajectoryRecorder
from tests.test_robustness.inputs import (
    BOUNDED,
    NO_NUMBERS,
    NO_POSITIVE_INTEGERS,
    NOT_FINITE,
    refused,
)
from tests.utils import seeded

NAMES = count()
POSITIVE_OR_NONE = NO_POSITIVE_INTEGERS.filter(lambda v: v is not None)
POSITIVE_OR_MINUS_ONE = NO_POSITIVE_INTEGERS.filter(lambda v: v != -1)
WRONG = [
    ('StiffnessHook', 'interval', POSITIVE_OR_NONE),
    ('StiffnessHook', 'max_samples', POSITIVE_OR_NONE),
    ('StiffnessHook', 'train_interval', POSITIVE_OR_NONE),
    ('StiffnessHook', 'reading', st.one_of(NO_NUMBERS, st.none())),
    ('AttentionBNCalibrationHook', 'num_batches', NO_POSITIVE_INTEGERS),
    ('InterimCheckpointHook', 'interval', NO_POSITIVE_INTEGERS),
    ('DurableCheckpointHook', 'interval', POSITIVE_OR_MINUS_ONE),
    ('DurableCheckpointHook', 'max_keep_ckpts', POSITIVE_OR_MINUS_ONE),
]


@pytest.mark.parametrize('hook, name, values', WRONG)
@settings(BOUNDED, max_examples=30)
@given(data=st.data())
def test_wrong_arguments(hook, name, values, data):
    value = data.draw(values)
    refused(name, lambda: HOOKS.build(
        {'type': f'mmstepnet.{hook}', name: value}))


@pytest.mark.parametrize('hook', sorted({hook for hook, *_ in WRONG}))
def test_unknown_arguments(hook):
    kwargs = {'interval': 1} if 'Interim' in hook else {}
    if hook == 'DurableCheckpointHook':
        pytest.skip("mmengine's takes any and hands them to the saving")
    with pytest.raises(TypeError, match='every'):
        HOOKS.build(dict(type=f'mmstepnet.{hook}', every=3, **kwargs))
    cls = HOOKS.build(dict(type=f'mmstepnet.{hook}', **kwargs)).__class__
    listed = {name for h, name, _ in WRONG if h == hook}
    switches = {'self', 'figures', 'blocks', 'step'}  # step is deprecated
    assert set(inspect.signature(cls).parameters) <= listed | switches


class Images(Dataset):
    """Images of which one may be spoilt."""

    metainfo = dict(classes=('a', 'b'))

    def __init__(self, size=8, spoilt=None, value=0.0):
        self.images = seeded(size, 3, 8, 8)
        if spoilt is not None:
            self.images[spoilt, 1, 2, 3] = value

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return dict(inputs=self.images[index])


class Classifier(BaseModel):

    def __init__(self):
        super().__init__()
        self.backbone = StepResNetCIFAR(20, base_channels=4, stem_channels=4)
        self.fc = nn.Linear(16, 1)

    def extract_feat(self, inputs):
        return self.backbone(torch.stack(list(inputs)))

    def forward(self, inputs, mode='tensor'):
        out = self.fc(self.extract_feat(inputs)[0].mean((2, 3)))
        if mode == 'loss':
            return dict(loss_a=out.square().mean(), loss_b=out.mean())
        return list(out)


def runner(work_dir, data, *hooks, lr=0.01, **kwargs):
    loader = dict(batch_size=2, num_workers=0, dataset=data,
                  sampler=dict(type='DefaultSampler', shuffle=False))
    return Runner(
        Classifier(), str(work_dir), train_dataloader=loader,
        train_cfg=dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=lr)),
        default_hooks=dict(checkpoint=dict(
            type='mmstepnet.DurableCheckpointHook', interval=1,
            max_keep_ckpts=1, by_epoch=True)),
        custom_hooks=[dict(type=f'mmstepnet.{hook}') for hook in hooks],
        log_level='ERROR', experiment_name=f'robust{next(NAMES)}',
        cfg=ConfigDict(train_dataloader=dict(
            batch_size=2, sampler=loader['sampler'])), **kwargs)


@settings(BOUNDED, max_examples=8)
@given(spoilt=st.integers(0, 7), value=NOT_FINITE)
def test_training_stops_at_a_loss_that_is_not_finite(
        tmp_path_factory, spoilt, value):
    work_dir = tmp_path_factory.mktemp('work')
    job = runner(work_dir, Images(spoilt=spoilt, value=value),
                 'FiniteCheckHook')
    with pytest.raises(FloatingPointError) as raised:
        job.train()
    message = str(raised.value)
    assert f'iteration {spoilt // 2 + 1} of epoch 1' in message
    assert 'loss_a' in message and 'learning rate 0.01' in message
    assert not list(work_dir.glob('*.pth'))


@pytest.mark.parametrize('hooks, trained', [(['DataCheckHook'], 0), ([], 3)])
def test_a_last_batch_of_one_image(tmp_path, hooks, trained):
    """The hook tells before the epoch what the gate would at its end."""
    job = runner(tmp_path, Images(size=7), *hooks)
    with pytest.raises(ValueError, match='drop_last=True'):
        job.train()
    assert job.iter == trained


@pytest.mark.parametrize('size, norm_eval', [(8, False), (7, True)])
def test_last_batches_that_gates_can_take(tmp_path, size, norm_eval):
    job = runner(tmp_path, Images(size=size), 'DataCheckHook')
    job.model.backbone.norm_eval = norm_eval
    job.train()
    assert job.iter == 8


class Spoil(Hook):
    """Spoils a weight behind the last iteration, whose loss is finite."""

    priority = 'VERY_HIGH'

    def __init__(self, name, value):
        self.name, self.value = name, value

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == runner.max_iters:
            runner.model.state_dict()[self.name].fill_(self.value)


@pytest.mark.parametrize('name, value, refusal', [
    ('fc.bias', float('nan'), True),
    ('fc.bias', float('inf'), True),
    ('backbone.bn1.running_var', float('nan'), True),
    ('backbone.bn1.running_var', float('inf'), False),  # as masks are
])
def test_weights_that_are_not_finite_are_not_saved(
        tmp_path, name, value, refusal):
    job = runner(tmp_path, Images(), 'FiniteCheckHook')
    job.register_hook(Spoil(name, value))
    if refusal:
        with pytest.raises(FloatingPointError, match=f'not written.*{name}'):
            job.train()
    else:
        job.train()
    saved, = tmp_path.glob('*.pth')
    assert saved.name == f'epoch_{1 if refusal else 2}.pth'
    weights = torch.load(saved, weights_only=False)['state_dict']
    assert all(w.isfinite().all() for w in weights.values()) == refusal


@settings(BOUNDED, max_examples=6)
@given(spoilt=st.integers(0, 7), value=NOT_FINITE)
def test_calibration_refuses_what_is_not_finite(
        tmp_path_factory, spoilt, value):
    job = runner(tmp_path_factory.mktemp('work'),
                 Images(spoilt=spoilt, value=value),
                 'AttentionBNCalibrationHook')
    refused('given NaN or infinite features', job.train)


@settings(BOUNDED, max_examples=6)
@given(spoilt=st.integers(0, 7), value=NOT_FINITE)
def test_stiffness_leaves_out_the_sample(tmp_path_factory, spoilt, value):
    """And names it; the others are measured."""
    data = Images(spoilt=spoilt, value=value)
    folder = tmp_path_factory.mktemp('work')
    job = runner(
        folder, Images(), 'StiffnessHook',
        val_dataloader=dict(
            batch_size=3, num_workers=0, dataset=data,
            sampler=dict(type='DefaultSampler', shuffle=False)),
        val_cfg=dict(), val_evaluator=Evaluator([]))
    job.val()
    recording, = folder.rglob('stiffness_*.npz')
    found = Trajectories.load(recording)
    assert found.settings['left_out'] == [f'sample {spoilt}']
    assert len(found) == 7


@settings(BOUNDED, max_examples=15)
@given(blocks=st.one_of(
    st.just([]), st.text(), st.just('layer9.*'), st.integers(),
    st.just({}), st.just([3]), st.just(['layer1.1', 'layer1.*.conv1']),
    st.just(['backbone.layer1.0']), st.just([nn.Linear, None])))
def test_stiffness_of_wrong_blocks(blocks):
    model = Classifier()
    with pytest.raises((ValueError, TypeError)) as raised:
        with TrajectoryRecorder(model, blocks):
            model(torch.rand(2, 3, 8, 8))
    assert 'block' in str(raised.value)


class Labelled(BaseDataset):
    """Labels of MMPretrain's kind."""

    METAINFO = dict(classes=tuple('abcde'))

    def __init__(self, labels):
        self.given = labels
        # A garbage collection for each data set takes longer.
        super().__init__(ann_file='', serialize_data=False)

    def load_data_list(self):
        return [dict(img_path=f'{i}.png', gt_label=label)
                for i, label in enumerate(self.given)]


@settings(BOUNDED, max_examples=60)
@given(labels=st.lists(st.integers(-3, 7), min_size=1, max_size=9))
def test_labels_out_of_range(labels):
    wrong = [i for i, label in enumerate(labels) if not 0 <= label < 5]
    data = Labelled(labels)
    if not wrong:
        check_labels(data, 5, 'train')
        return
    message = refused(f'{wrong[0]}.png',
                      lambda: check_labels(data, 5, 'train'))
    assert f'label {labels[wrong[0]]} ' in message
    assert f'{len(wrong)} such' in message and 'num_classes=5' in message


def test_data_without_labels_or_classes_pass():
    class Unlabelled(Labelled):
        def load_data_list(self):
            return [dict(img_path='0.png')]

    for data in (Unlabelled([]), Labelled([[0, 9], [1]]), Images()):
        check_labels(data, 5, 'test')
        check_categories(data, 'test')
        check_not_empty(data, 'test')


def test_an_empty_data_set(tmp_path):
    """mmengine divides by zero, and tells neither file nor split."""
    refused('train data set', runner(
        tmp_path, Images(size=0), 'DataCheckHook').train)
    with pytest.raises(ZeroDivisionError):
        runner(tmp_path, Images(size=0)).train()


@pytest.mark.parametrize('wrap', [
    lambda data: data, lambda data: RepeatDataset(data, 2),
    lambda data: ConcatDataset([Labelled([0]), data])])
@pytest.mark.parametrize('loop', ['train', 'val', 'test'])
def test_labels_are_looked_at_before_each_loop(tmp_path, wrap, loop):
    """Below wrappers of data sets as well."""
    good, bad = (dict(
        batch_size=2, dataset=data,
        sampler=dict(type='DefaultSampler', shuffle=False))
        for data in (Labelled([0, 1]), wrap(Labelled([0, 1, 5, 2]))))
    if loop == 'test':
        job = runner(tmp_path, Images(), 'DataCheckHook', test_dataloader=bad,
                     test_cfg={}, test_evaluator=Evaluator([]))
        call = job.test
    else:
        job = runner(
            tmp_path, (bad if loop == 'train' else good)['dataset'],
            'DataCheckHook', val_dataloader=bad if loop == 'val' else good,
            val_cfg={}, val_evaluator=Evaluator([]))
        call = job.train
    job.model.head = nn.Module()
    job.model.head.num_classes = 5
    assert f'the {loop} data set' in refused('label 5 at 2.png', call)


def test_class_names_in_another_order(tmp_path):
    """Of MMPretrain's folders, which it numbers by the alphabet."""
    for folder in ('apple', 'pear'):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / '1.jpg').touch()
    for classes in (['apple', 'pear'], ['Malus', 'Pyrus'], None):
        check_order(CustomDataset(str(tmp_path), metainfo=dict(
            classes=classes) if classes else None), 'train')
    data = CustomDataset(str(tmp_path), metainfo=dict(
        classes=['pear', 'apple']))
    with pytest.raises(ValueError, match='apple, pear, and its classes are'):
        check_order(data, 'train')
