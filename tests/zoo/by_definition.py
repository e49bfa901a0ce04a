"""NSI by its definition in float64, against what the recorder measures.

    python -m tests.zoo.by_definition

The states are taken from a copy of each network by hooks that are placed by
hand, after reading its source: x_t and x_{t+1}, the latter before any
activation, and f where an attention value stands between them. Prints a table:
how many steps, and the largest relative difference of a sample's NSI at one of
them. Networks of libraries that are not installed are left out.
"""

import copy
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import perturb

Place = tuple[str, str, int]
"""Module, whether it is what goes 'in' or 'out', and at which of its runs."""


def into(module: str, run: int = 0) -> Place:
    """What a module of a block is given; '' is the block itself."""
    return module, 'in', run


def out_of(module: str, run: int = 0) -> Place:
    """What a module of a block returns."""
    return module, 'out', run


PLAIN = {'': (into(''), out_of(''))}
PRE_NORM = {'.attn_step': (into(''), into('norm2')),
            '.mlp_step': (into('norm2'), out_of(''))}
WORDS = dict(input_ids=torch.arange(48).view(2, 24))


@dataclass
class Network:
    """A network, and where the states of its steps are.

    Attributes:
        library (str): What to import.
        build (Callable): Makes the network of it.
        blocks (str): Pattern of the names of the blocks that are measured.
        steps (Mapping): For each step what its name adds to that of the
            block, and the places of x_t, x_{t+1} and, with an attention
            value, f.
        inputs (Mapping): Named inputs; without any an image.
    """

    library: str
    build: Callable
    blocks: str
    steps: Mapping[str, tuple]
    inputs: Mapping[str, Tensor] | None = None


def transformer(kind: str, **settings) -> Callable:
    """A small model of transformers."""
    tokens = dict(vocab_size=100, bos_token_id=1, eos_token_id=2)
    return lambda library: getattr(library, f'{kind}Model')(
        getattr(library, f'{kind}Config')(**tokens, **settings))


def of_timm(name: str) -> Callable:
    """A model of timm."""
    return lambda library: library.create_model(name)


NETWORKS = {
    'ResNet-50': Network(
        'torchvision', lambda library: library.models.resnet50(),
        r'layer\d\.[1-9]', {'': (into(''), into('relu', 2))}),
    'RegNetY-400MF': Network(
        'torchvision', lambda library: library.models.regnet_y_400mf(),
        r'trunk_output\.block\d\.block\d-[1-9]',
        {'': (into(''), into('activation'))}),
    'EfficientNet-B0': Network(
        'torchvision', lambda library: library.models.efficientnet_b0(),
        r'features\.[1-7]\.[1-9]', PLAIN),
    'ViT-Ti': Network('timm', of_timm('vit_tiny_patch16_224'),
                      r'blocks\.[1-9]\d*', PRE_NORM),
    'ConvNeXt-T': Network('timm', of_timm('convnext_tiny'),
                          r'stages\.\d\.blocks\.[1-9]', PLAIN),
    'Swin-T': Network('timm', of_timm('swin_tiny_patch4_window7_224'),
                      r'layers\.\d\.blocks\.[1-9]', PRE_NORM),
    'SE-ResNet-50': Network(
        'timm', of_timm('seresnet50'), r'layer\d\.[1-9]',
        {'': (into(''), into('act3'), out_of('bn3'))}),
    'BERT': Network(
        'transformers',
        transformer('Bert', hidden_size=64, num_hidden_layers=4,
                    num_attention_heads=4, intermediate_size=128),
        r'encoder\.layer\.[1-9]',
        {'.attn_step': (into(''), into('attention.output.LayerNorm')),
         '.mlp_step': (out_of('attention.output.LayerNorm'),
                       into('output.LayerNorm'))}, WORDS),
    'GPT-2': Network(
        'transformers',
        transformer('GPT2', n_embd=64, n_layer=4, n_head=4), r'h\.[1-9]',
        {'.attn_step': (into(''), into('ln_2')),
         '.mlp_step': (into('ln_2'), out_of(''))}, WORDS),
    'ResNet-50 of mmdet': Network(
        'mmdet.models.backbones', lambda library: library.ResNet(50),
        r'layer\d\.[1-9]', {'': (into(''), into('relu', 2))}),
    'SE-ResNet-50 of mmpretrain': Network(
        'mmpretrain.models.backbones', lambda library: library.SEResNet(50),
        r'layer\d\.[1-9]',
        {'': (into(''), into('relu', 2), out_of('bn3'))}),
    'StepResNet-50': Network(
        'mmstepnet.models', lambda library: library.StepResNet(
            50, attention=dict(type='StepNet'), host='mmpretrain'),
        r'layer\d\.[1-9]',
        {'': (into(''), into('step.activation', 2), out_of('bn3'))}),
}


def states(model: nn.Module, wanted: set[Place],
           inputs: Callable) -> dict[Place, Tensor]:
    """Run a model and keep what goes into its modules and comes out."""
    kept, runs = {}, Counter()

    def see(name: str, side: str, values: object) -> None:
        place = name, side, runs[name, side]
        runs[name, side] += 1
        if place in wanted:
            while not isinstance(values, Tensor):
                values = next(iter(values))
            kept[place] = values.detach().double()

    for name in {name for name, *_ in wanted}:
        module = model.get_submodule(name)
        module.register_forward_pre_hook(
            lambda m, args, kwargs, name=name: see(
                name, 'in', (*args, *kwargs.values())), with_kwargs=True)
        module.register_forward_hook(
            lambda m, args, out, name=name: see(name, 'out', out))
    inputs(model)
    return kept


def by_definition(model: nn.Module, network: Network,
                  inputs: Callable) -> dict[str, tuple[Tensor, Tensor]]:
    """NSI of all steps as 'adaptive' and as 'unit', each (N,)."""
    places = {
        f'{name}{suffix}': [(f'{name}.{part}'.rstrip('.'), side, run)
                            for part, side, run in step]
        for name, _ in model.named_modules()
        if re.fullmatch(network.blocks, name)
        for suffix, step in network.steps.items()}
    kept = states(copy.deepcopy(model), {
        place for step in places.values() for place in step}, inputs)
    result = {}
    for name, (before, after, *branch) in places.items():
        x, x_next = kept[before].flatten(1), kept[after].flatten(1)
        unit = (x_next - x).norm(dim=1) / x.norm(dim=1)
        result[name] = unit, unit
        if branch:
            f = kept[branch[0]].flatten(1)
            result[name] = f.norm(dim=1) / x.norm(dim=1), unit
    return result


def row(name: str) -> list | None:
    """What stands in the table; None without the library."""
    network = NETWORKS[name]
    try:
        library = import_module(network.library)
    except ImportError:
        return None
    torch.manual_seed(0)
    model = perturb(network.build(library))
    model.eval()  # which returns None in the hosts
    images = torch.randn(2, 3, 224, 224)

    @torch.no_grad()
    def inputs(model: nn.Module) -> None:
        model(**network.inputs) if network.inputs else model(images)

    expected = by_definition(model, network, inputs)
    with TrajectoryRecorder(model) as recorder:
        inputs(model)
    assert set(recorder.blocks) == set(expected), recorder.blocks
    record = recorder.record
    worst = {
        reading: max(float((record[reading][:, k] / exact[n] - 1).abs().max())
                     for k, exact in enumerate(
                         expected[block] for block in recorder.blocks))
        for n, reading in enumerate(('adaptive', 'unit'))}
    return [network.library.partition('.')[0], name,
            str(len(recorder.blocks)),
            f'{worst["adaptive"]:.1e}', f'{worst["unit"]:.1e}']


def main() -> None:
    """Print the table."""
    warnings.simplefilter('ignore')
    print('| library | network | steps | adaptive | unit |\n'
          '|---|---|---|---|---|')
    for name in NETWORKS:
        cells = row(name)
        if cells is not None:
            print('|', ' | '.join(cells), '|', flush=True)


if __name__ == '__main__':
    main()
