"""Steps that are saved here and loaded in a fresh process.

    python -m tests.zoo.saved_steps          # of the libraries that are there
    python -m tests.zoo.saved_steps torchvision mmdet

Real configs, random weights, every norm off its start. Steps are put in and
every gate is moved. A new process makes the base model, loads, and compares
its outputs to the bit, in float32 and in bfloat16. Prints a table.
"""

import contextlib
import copy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn as nn

from mmstepnet import ResidualStep, insert_steps, load_steps, save_steps
from tests.test_steps.cases import randomise
from tests.test_steps.insertion import outputs, perturb

DTYPES = torch.float32, torch.bfloat16
CELL = 'cell:'


def timm(name: str) -> nn.Module:
    return import_module('timm').create_model(name)


def torchvision(name: str) -> nn.Module:
    return import_module('torchvision').models.get_model(
        name, weights=None, **(dict(weights_backbone=None, min_size=128,
                                    box_score_thresh=0.0)
                               if 'rcnn' in name else {}))


def transformers(name: str) -> nn.Module:
    hf = import_module('transformers')
    options = dict(
        use_timm_backbone=False, use_pretrained_backbone=False,
        backbone_config=hf.ResNetConfig(out_features=['stage4'])
    ) if name.startswith('Detr') else {}
    config = getattr(hf, f'{name.partition("For")[0].removesuffix("Model")}'
                         f'Config')
    return getattr(hf, name)(config(**options))


def mmdet(name: str) -> nn.Module:
    config = import_module('mmengine.hub').get_config(f'mmdet::{name}.py')
    import_module('mmdet.utils').register_all_modules()
    return import_module('mmdet.registry').MODELS.build(config.model)


def mmpretrain(name: str) -> nn.Module:
    return import_module('mmpretrain').get_model(name)


NETWORKS: dict[str, tuple[Callable[[str], nn.Module], str]] = {
    f'{build.__name__}: {name}': (build, name) for build, names in {
        timm: ['resnet50', 'convnext_tiny', 'vit_small_patch16_224'],
        torchvision: ['resnet50', 'swin_t', 'fasterrcnn_resnet50_fpn'],
        transformers: ['ViTForImageClassification', 'Dinov2Model',
                       'ConvNextModel', 'DetrForObjectDetection'],
        mmdet: ['faster_rcnn/faster-rcnn_r50_fpn_1x_coco'],
        mmpretrain: ['swin-tiny_16xb64_in1k'],
    }.items() if find_spec(build.__name__) for name in names}


def inputs_of(network: str, dtype: torch.dtype) -> object:
    """What a network is called with, by keywords or one tensor."""
    generator = torch.Generator().manual_seed(0)
    small = 'rcnn' in network or 'Detr' in network
    side = 128 if small else 224
    images = torch.rand(1, 3, side, side, generator=generator).to(dtype)
    if network.startswith('transformers'):
        return dict(pixel_values=images)
    if network.startswith('mmdet'):
        sample = import_module('mmdet.structures').DetDataSample(
            metainfo=dict(img_shape=(side, side), ori_shape=(side, side),
                          scale_factor=(1.0, 1.0)))
        return dict(inputs=images, data_samples=[sample], mode='tensor')
    return images


def run(network: str, model: nn.Module, dtype: torch.dtype) -> list:
    """Its outputs in evaluation mode."""
    inputs = inputs_of(network, dtype)
    with torch.no_grad():
        out = outputs(model.to(dtype), inputs)
        if network.endswith('rcnn_resnet50_fpn'):
            # Random weights may find no box.
            out += model.backbone(inputs).values()
    return out


def example_of(network: str) -> dict:
    """What transformers' models, and no others, are found with."""
    return dict(example=inputs_of(network, torch.float32)) if (
        network.startswith('transformers')) else {}


def write(network: str, folder: Path) -> list:
    """Save all that the second process reads; first columns of the row."""
    build, name = NETWORKS[network]
    torch.manual_seed(0)
    model = perturb(build(name))
    model.eval()
    base = {key: t.clone() for key, t in model.state_dict().items()}
    plain = {}
    for dtype in DTYPES:
        with contextlib.suppress(RuntimeError):  # hosts that lack bfloat16
            plain[dtype] = run(network, copy.deepcopy(model), dtype)
    names = insert_steps(model, **example_of(network))
    steps = [m for m in model.modules() if isinstance(m, ResidualStep)]
    randomise(*(step.attention for step in steps))
    sizes = {}
    for dtype in plain:
        out = run(network, model, dtype)
        assert not all(map(torch.equal, out, plain[dtype])), 'no gate acts'
        assert all(t.isfinite().all() for t in out)
        to = folder / str(dtype)
        save_steps(model, to)
        torch.save(dict(names=names, out=out, base={
            key: t.to(dtype) if t.is_floating_point() else t
            for key, t in base.items()}), to / 'wanted.pth')
        sizes[dtype] = (to / 'steps.safetensors').stat().st_size / 1e3
    kb, *half = sizes.values()
    return [network, len(names), len(steps), f'{kb:.0f}',
            f'{half[0]:.0f}' if half else '']


def read(network: str, folder: Path) -> None:
    """Load in this process and print the last columns."""
    for dtype in DTYPES:
        cell = 'the host does not run'
        if (folder / str(dtype)).exists():
            try:
                cell = compare(network, folder / str(dtype), dtype)
            except Exception as error:
                cell = f'{type(error).__name__}: {error}'
        print(CELL, ' '.join(cell.split()))  # others print, too


def compare(network: str, folder: Path, dtype: torch.dtype) -> str:
    """What differs from the model that was saved, if anything."""
    build, name = NETWORKS[network]
    wanted = torch.load(folder / 'wanted.pth')
    torch.manual_seed(1)
    model = build(name).to(dtype)
    model.load_state_dict(wanted['base'])
    model.eval()
    names = load_steps(model, folder)
    if names != wanted['names']:
        return 'other blocks'
    out = run(network, model, dtype)
    if len(out) == len(wanted['out']) and all(
            map(torch.equal, out, wanted['out'])):
        return ''
    worst = max(float((a - b).abs().max())
                for a, b in zip(out, wanted['out']) if a.numel())
    return f'differs by {worst:.1e}'


def main() -> None:
    """Print the table."""
    warnings.simplefilter('ignore')
    if sys.argv[1:2] == ['--read']:
        read(sys.argv[2], Path(sys.argv[3]))
        return
    print('| network | blocks | steps | file, kB | in bfloat16 | steps, '
          'float32 | bfloat16 |')
    print('|---' * 7 + '|')
    for network in NETWORKS:
        if sys.argv[1:] and not any(w in network for w in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                cells = write(network, Path(folder))
                found = subprocess.run(
                    [sys.executable, '-m', __spec__.name, '--read', network,
                     folder], capture_output=True, text=True, check=True,
                ).stdout.splitlines()
                cells += [line.removeprefix(CELL).strip() or 'equal'
                          for line in found if line.startswith(CELL)]
            except Exception as error:
                cells = [network, ' '.join(
                    f'{type(error).__name__}: {error}'.split())]
        print('|', ' | '.join(map(str, cells)), '|', flush=True)


if __name__ == '__main__':
    main()
