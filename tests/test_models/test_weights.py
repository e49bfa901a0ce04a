"""Where the attentions start, whatever initialises or loads the backbone."""

import pytest
import torch
import torch.nn as nn
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from mmstepnet.attentions import ATTENTIONS, choose_step
from mmstepnet.steps import ResidualStep
from tests.checkpoints import save_model
from tests.documents import ROOT
from tests.utils import perturb

pytest.importorskip('mmdet')
ARGUMENTS = {'SGE': dict(groups=4), 'FCA': dict(map_size=7)}

# A model's own init_cfg comes before its backbone's.
LOUD = dict(
    type='Normal', mean=1.0, std=3.0, layer=['Conv2d', 'Linear', '_BatchNorm']
)


@MODELS.register_module(force=True)
class LoudModel(BaseModel):
    """Some backbones."""

    def __init__(self, backbones):
        super().__init__(init_cfg=LOUD)
        self.backbones = nn.ModuleDict(
            {
                key: MODELS.build(backbone)
                for key, backbone in backbones.items()
            }
        )

    def init_weights(self):
        super().init_weights()  # which does not look into a ModuleDict
        for backbone in self.backbones.values():
            backbone.init_weights()

    def forward(self, inputs):
        return [model(inputs) for model in self.backbones.values()]


def config(name, **kwargs):
    return dict(type=name, **ARGUMENTS.get(name, {}), **kwargs)


def backbone(kind, attention, **kwargs):
    narrow = dict(
        depth=18,
        base_channels=16,
        stem_channels=16,
        zero_init_residual=False,
        **kwargs,
    )
    if kind == 'StepResNet':
        return dict(type='mmstepnet.StepResNet', attention=attention, **narrow)
    return dict(
        type='mmstepnet.StepBackbone',
        attention=attention,
        backbone=dict(type='ResNet', **narrow),
    )


def initialised(host, backbones, tmp_path, load_from=None):
    """Backbones of a model that a runner in a host's scope has made ready."""
    runner = Runner.from_cfg(
        Config(
            dict(
                model=dict(type='LoudModel', backbones=backbones),
                default_scope=host,
                work_dir=str(tmp_path),
                load_from=load_from,
                experiment_name=tmp_path.name,
            )
        )
    )
    runner._init_model_weights()
    runner.load_or_resume()
    return dict(runner.model.backbones)


def starts(model):
    """Steps that the attentions choose, in training mode."""
    found = [
        m.attention
        for m in model.modules()
        if isinstance(m, ResidualStep) and m.attention is not None
    ]
    assert found
    for attention in found:
        x, f = torch.randn(2, 2, attention.channels, 4, 4)
        yield choose_step(attention.train(), x, f).detach()


BOTH = pytest.mark.parametrize(
    'host, kind', [('mmpretrain', 'StepBackbone'), ('mmdet', 'StepResNet')]
)


@BOTH
def test_every_attention_starts_as_it_says(host, kind, tmp_path):
    """After a Runner's init_weights, and after a plain checkpoint.

    A host's Kaiming or Constant initialisation would move it.
    """
    settings = {
        name: config(name, init_step=1.0)
        for name in sorted(set(ATTENTIONS) - {'Plain'})
    }
    settings.update(
        {
            f'paper {name}': config(name, init_step=None)
            for name in ('SRM', 'CBAM', 'SE', 'StepNet')
        }
    )
    plain = perturb(
        MODELS.build(dict(backbone('StepResNet', None), host=host))
    ).state_dict()
    torch.save(
        {
            f'backbones.{name}.{key}': value
            for name in settings
            for key, value in plain.items()
        },
        tmp_path / 'plain.pth',
    )
    found = initialised(
        host,
        {name: backbone(kind, cfg) for name, cfg in settings.items()},
        tmp_path,
        str(tmp_path / 'plain.pth'),
    )
    assert found.keys() == settings.keys()
    wanted = {
        'paper StepNet': torch.tensor(-1.0).sigmoid(),
        'paper SRM': 0.5,
        'paper SE': None,
        'paper CBAM': None,
    }
    for name, model in found.items():
        assert torch.equal(model.conv1.weight, plain['conv1.weight'])
        start = wanted.get(name, 1.0)
        for step in starts(model):
            assert start is None or (step - start).abs().max() < 1e-7
        # LOUD's weights have deviation 3.
        assert all(
            p.std() < 1.2
            for key, p in model.named_parameters()
            if '.step.' in key and p.numel() > 8
        ), name


@BOTH
def test_attentions_of_a_checkpoint_stay(host, kind, tmp_path):
    """Of one that init_cfg names, beside another initialisation."""
    cfg = config('SRM', init_step=1.0)
    trained = perturb(
        MODELS.build(dict(backbone('StepResNet', cfg), host=host))
    ).state_dict()
    torch.save(
        {
            k: v
            for k, v in trained.items()
            if not k.startswith('layer1.1.step')
        },
        tmp_path / 'some.pth',
    )
    model = initialised(
        host,
        dict(
            srm=backbone(
                kind,
                cfg,
                init_cfg=[
                    LOUD,
                    dict(
                        type='Pretrained',
                        checkpoint=str(tmp_path / 'some.pth'),
                    ),
                ],
            )
        ),
        tmp_path,
    )['srm']
    for key, value in model.state_dict().items():
        if not key.startswith('layer1.1.step'):
            assert torch.equal(value, trained[key]), key
    (step,) = starts(model.layer1[1])
    assert torch.equal(step, torch.ones_like(step))
    model.init_weights()  # once more initialises nothing
    gate = 'layer4.1.step.attention.style_weight'
    assert torch.equal(model.state_dict()[gate], trained[gate])


def test_a_host_that_initialises_by_itself():
    """MMDetection's Swin draws every linear layer, and asks no child."""
    model = MODELS.build(
        dict(
            type='mmstepnet.StepBackbone',
            attention=config('SE'),
            backbone=dict(
                type='mmdet.SwinTransformer',
                embed_dims=24,
                depths=(2, 2, 2, 2),
            ),
        )
    )
    model.init_weights()
    for step in starts(model):
        assert torch.equal(step, torch.ones_like(step))


@pytest.mark.parametrize('attention', ['se', 'eca', 'sge', 'stepnet'])
def test_backbones_come_from_imagenet_whole(tmp_path, attention):
    """Every weight, the attention's included, is the classifier's.

    An attention with layers and one with statistics are loaded.
    """
    name = f'resnet50_{attention}_imagenet'
    cfg = Config.fromfile(
        ROOT
        / 'projects/reproduction/configs/coco'
        / (f'faster_rcnn_r50_{attention}-imagenet_coco.py')
    )
    init_cfg = cfg.model.backbone.init_cfg
    assert init_cfg.checkpoint == f'work_dirs/{name}/epoch_120.pth'
    config = ROOT / f'configs/imagenet/{name}.py'
    kinds = [
        dict(backbone.get('attention', dict(type='StepNet')), init_step=None)
        for backbone in (
            cfg.model.backbone,
            Config.fromfile(config).model.backbone,
        )
    ]
    assert kinds[0] == kinds[1]
    if attention not in ('se', 'stepnet'):
        return
    path = init_cfg.checkpoint = str(tmp_path / 'epoch_120.pth')
    classifier = save_model(path, config)
    init_default_scope(cfg.default_scope)
    backbone = MODELS.build(cfg.model.backbone)
    backbone.init_weights()
    torch.testing.assert_close(
        backbone.state_dict(), classifier.backbone.state_dict(), rtol=0, atol=0
    )
