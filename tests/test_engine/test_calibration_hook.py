import copy

import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch.utils.data import Dataset

from mmstepnet import calibrate
from mmstepnet.models import StepResNet
from tests.utils import perturb, seeded


class Images(Dataset):

    def __init__(self):
        self.images = seeded(10, 3, 32, 32)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return dict(inputs=self.images[index])


class Detector(BaseModel):

    def __init__(self):
        super().__init__()
        self.backbone = perturb(StepResNet(
            18, host='mmpretrain', norm_eval=True, init_cfg=None,
            attention=dict(type='StepNet', init_step=1.0)))

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


def test_statistics_are_those_of_all_pooled_vectors(tmp_path):
    model = Detector()
    dead = model.backbone.layer1[0].step.attention
    with torch.no_grad():  # a channel without spread keeps its variance
        dead.pair_weight[3], dead.bn.running_var[3] = 0, 1
    keep = train(tmp_path, model, num_batches=3)
    twin = copy.deepcopy(model)
    for name in keep.mean:
        twin.get_submodule(name).reset_running_stats()
    assert calibrate(twin, [Images().images], forward=Detector.extract_feat
                     ) == len(keep.mean) == 5
    for name, kept in keep.mean.items():
        bn, wanted = (m.get_submodule(name) for m in (model, twin))
        torch.testing.assert_close(bn.running_mean, wanted.running_mean)
        torch.testing.assert_close(
            bn.running_var, wanted.running_var, rtol=1e-3, atol=1e-6)
        assert bn.num_batches_tracked == 3
        # norm_eval keeps them through training.
        assert torch.equal(kept, bn.running_mean)
