import pytest
import torch
import torch.nn as nn
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.utils.data import Dataset

from mmstepnet.models import StepResNet
from tests.utils import perturb


class Images(Dataset):

    def __init__(self, count=10):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 3, 32, 32, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return dict(inputs=self.images[index])


class Detector(BaseModel):

    def __init__(self, type='StepNet', init_step=1., **kwargs):
        super().__init__()
        self.backbone = perturb(StepResNet(
            18,
            host='mmpretrain',
            norm_eval=True,
            attention=dict(type=type, init_step=init_step),
            init_cfg=None,
            **kwargs))

    def extract_feat(self, inputs):
        return self.backbone(torch.stack(list(inputs)))

    def forward(self, inputs, mode):
        return dict(loss=self.extract_feat(inputs)[0].mean())


class Keep(Hook):
    """What the adaptors' BNs hold after the first iteration."""

    def after_train_iter(self, runner, *args, **kwargs):
        self.mean = {
            name: module.running_mean.clone()
            for name, module in runner.model.named_modules()
            if name.endswith('attention.bn')
        }


def train(tmp_path, model, **hook):
    keep = Keep()
    runner = Runner(
        model,
        str(tmp_path),
        train_dataloader=dict(
            batch_size=4,
            dataset=Images(),
            sampler=dict(type='DefaultSampler', shuffle=True)),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=OptimWrapper(
            torch.optim.SGD(model.parameters(), lr=0.)),
        custom_hooks=[
            dict(type='mmstepnet.AttentionBNCalibrationHook', **hook), keep
        ],
        default_hooks=dict(checkpoint=None, logger=None),
        experiment_name=tmp_path.name,
        cfg=ConfigDict(train_dataloader=dict(
            batch_size=4,
            sampler=dict(type='DefaultSampler', shuffle=True))))
    runner.train()
    return keep


def pooled_inputs(model, images):
    """What each adaptor sees of the plain network, formed the long way."""
    seen = {}
    hooks = []
    for name, block in model.backbone.residual_blocks():
        if block.step.attention is None:
            continue

        def keep(step, inputs, name=name):
            x, branch, norm, *_ = inputs
            x_next = x + norm(branch)
            weight = step.attention.pair_weight
            seen[name] = (weight[:, 0] * x.mean((2, 3)) +
                          weight[:, 1] * x_next.mean((2, 3))).double()

        hooks.append(block.step.register_forward_pre_hook(keep))
    with torch.no_grad():
        model.eval().extract_feat(images)
    for hook in hooks:
        hook.remove()
    return seen


def test_statistics_are_those_of_all_pooled_vectors(tmp_path):
    model = Detector()
    keep = train(tmp_path, model, num_batches=3)
    expected = pooled_inputs(model, Images().images)
    assert len(expected) == 5
    for name, z in expected.items():
        bn = model.backbone.get_submodule(name).step.attention.bn
        torch.testing.assert_close(
            bn.running_mean.double(), z.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            bn.running_var.double(), z.var(0), rtol=1e-3, atol=1e-6)
        assert bn.num_batches_tracked == 3
        # norm_eval keeps them through training.
        assert torch.equal(keep.mean[f'backbone.{name}.step.attention.bn'],
                           bn.running_mean)


def test_statistics_that_are_there_are_kept(tmp_path):
    model = Detector()
    model.init_weights()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.fill_(7.)
            module.num_batches_tracked.fill_(1)
    train(tmp_path, model)
    means = [m.running_mean for m in model.modules()
             if isinstance(m, nn.BatchNorm1d)]
    assert means and all(torch.equal(m, torch.full_like(m, 7.))
                         for m in means)


@pytest.mark.filterwarnings('ignore:StepResNet. frozen_stages=1')
def test_frozen_attentions_are_left_alone(tmp_path):
    model = Detector(frozen_stages=1)
    train(tmp_path, model)
    norms = {name: module for name, module in model.named_modules()
             if isinstance(module, nn.BatchNorm1d)}
    left = {name for name, norm in norms.items()
            if norm.num_batches_tracked == 0}
    assert left == {f'backbone.layer1.{i}.step.attention.bn' for i in (0, 1)}
    assert all((norms[name].running_mean == 0).all() for name in left)
    assert len(norms) == 5


def test_what_has_no_spread(tmp_path):
    """SRM starts by looking at nothing; one channel may be dead."""
    model = Detector('SRM', None)
    with pytest.raises(ValueError, match='init_step=1.0'):
        train(tmp_path / 'srm', model)
    model = Detector()
    model.init_weights()
    attention = model.backbone.layer1[0].step.attention
    with torch.no_grad():
        attention.pair_weight[3] = 0
    before = attention.bn.running_var.clone()
    train(tmp_path / 'dead', model)
    after = attention.bn.running_var
    assert after[3] == before[3]
    assert (after != before).sum() == len(after) - 1


@pytest.mark.parametrize('num_batches', [0, -1, 1.5, None])
def test_impossible_number_of_batches(num_batches):
    with pytest.raises(ValueError, match='num_batches must be a positive'):
        HOOKS.build(dict(type='mmstepnet.AttentionBNCalibrationHook',
                         num_batches=num_batches))
