"""Every parameter of the configs' models can learn."""

import re

import pytest
import torch
from mmengine.registry import MODELS

from tests.checkpoints import load_config
from tests.documents import CONFIGS
from tests.utils import perturb

SIZES = (
    'data_preprocessor',
    'depth',
    'img_size',
    'in_channels',
    'init_cfg',
    'num_classes',
)


def kind_of(cfg):
    """What a parameter could be silent by: a model but for its sizes."""

    def small(node):
        if isinstance(node, dict):
            return {
                key: small(value)
                for key, value in node.items()
                if key not in SIZES
            }
        return (
            [small(value) for value in node]
            if isinstance(node, (list, tuple))
            else node
        )

    return repr(small(cfg.model.to_dict()))


def test_basenames_are_unique():
    """Mim finds a config by its basename."""
    names = [path.name for path in CONFIGS]
    assert len(names) == len(set(names))


def classification_batch(cfg):
    from mmpretrain.structures import DataSample

    crop = [
        t
        for t in cfg.train_dataloader.dataset.pipeline
        if t.type in ('RandomCrop', 'RandomResizedCrop')
    ]
    large = any(t.type == 'RandomResizedCrop' for t in crop)
    size = 64 if large else crop[0].crop_size if crop else 32
    classes = cfg.model.head.num_classes
    return dict(
        inputs=[
            torch.randint(0, 256, (3, size, size), dtype=torch.uint8)
            for _ in range(4)
        ],
        data_samples=[
            DataSample().set_gt_label(i % classes) for i in range(4)
        ],
    )


def detection_batch(cfg):
    from mmdet.testing import demo_mm_inputs

    heads = cfg.model.get('roi_head', {})
    head = heads.get('bbox_head', cfg.model.get('bbox_head'))
    return demo_mm_inputs(
        2,
        [(3, 64, 96), (3, 64, 96)],
        num_items=[4, 4],
        num_classes=head.num_classes,
        with_mask='mask_head' in heads,
    )


def silent_parameters(cfg, seed):
    """Names of parameters without a gradient, under one draw of weights."""
    torch.manual_seed(seed)
    detects = cfg.default_scope == 'mmdet'
    batch = (detection_batch if detects else classification_batch)(cfg)
    model = perturb(MODELS.build(cfg.model), seed).train()
    batch = model.data_preprocessor(batch, training=True)
    losses = model(**batch, mode='loss')
    loss, _ = model.parse_losses(losses)
    assert loss.isfinite()
    loss.backward()
    return {
        key
        for key, p in model.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.abs().sum() > 0)
    }


def load(path):
    cfg = load_config(path)
    if 'init_cfg' in cfg.model.get('backbone', {}):
        cfg.model.backbone.init_cfg = None
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_builds(path):
    MODELS.build(load(path).model)


def test_every_parameter_learns():
    """Of models of one kind the least deep stands for all."""
    kinds = {}
    for path in CONFIGS:
        cfg = load(path)
        if 'backbone' not in cfg.model:  # the second paper's networks
            continue
        depth = cfg.model.backbone.get('depth', 0)
        in_name = re.search(r'resnet(\d+)|_r(\d+)_', path.name)
        if in_name:
            assert depth == int(in_name[1] or in_name[2]), path
        size, kind = (depth, path), kind_of(cfg)
        kinds[kind] = min(kinds.get(kind, size), size)
    for _, path in kinds.values():
        # A draw may switch off the one ReLU of a narrow layer.
        silent = silent_parameters(load(path), 0)
        for seed in range(1, 8):
            if silent:
                silent &= silent_parameters(load(path), seed)
        assert not silent, path
