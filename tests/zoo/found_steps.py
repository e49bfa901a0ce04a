"""How many residual steps are found in every model of torchvision and timm.

    python -m tests.zoo.found_steps found.tsv --library timm --families

On the meta device, so that nothing is computed. One line a model: library,
module, model, steps that are recorded, stages, and how many sums are left out
or are no steps, by reason. Models that the file names already are passed over,
so that an interrupted run goes on. At the end the counts are printed, and the
modules of the models without steps.
"""

import argparse
from collections import Counter
from pathlib import Path

import timm
import torch
import torchvision

from mmstepnet.steps.finding import Arrangement, Finder

SIZES = {'s3d': 224, 'swin3d': 224, 'mvit': 224}
"""Image size of torchvision's video networks by their names; others: 112."""


def names(library: str, families: bool) -> list[str]:
    """Names of a library's models, of each module the first one if wanted."""
    if library == 'torchvision':
        return torchvision.models.list_models()
    found = timm.list_models()
    if families:
        first = {module(library, name): name for name in reversed(found)}
        found = sorted(first.values())
    return found


def module(library: str, name: str) -> str:
    """Name of the Python module that a model is made in."""
    builder = (torchvision.models.get_model_builder
               if library == 'torchvision' else timm.model_entrypoint)(name)
    return builder.__module__.partition('.models.')[2]


def build(library: str, name: str) -> tuple[torch.nn.Module, tuple]:
    """A model and its inputs."""
    if library == 'timm':
        model = timm.create_model(name)
        size = model.pretrained_cfg.get('input_size', (3, 224, 224))
        return model, (torch.rand(2, *size), )
    kind, options = module(library, name), {}
    if kind.startswith(('detection', 'segmentation')):
        options = dict(weights_backbone=None)
    model = torchvision.models.get_model(name, **options)
    if kind.startswith('detection'):
        return model, (list(torch.rand(2, 3, 224, 224)), )
    if kind.startswith('optical_flow'):
        return model, (torch.rand(2, 3, 128, 128), ) * 2
    if kind.startswith('video'):
        size = next((n for k, n in SIZES.items() if name.startswith(k)), 112)
        return model, (torch.rand(2, 3, 16, size, size), )
    size = 299 if name == 'inception_v3' else 224
    return model, (torch.rand(2, 3, size, size), )


def line(library: str, name: str) -> str:
    """What is found in a model."""
    try:
        # Detectors compare values, which the meta device does not have.
        detects = module(library, name).startswith('detection')
        with torch.device('cpu' if detects else 'meta'):
            model, inputs = build(library, name)
            finder = Finder(model.eval())
            handles = finder.attach()
            with torch.no_grad():
                model(*inputs)
        steps = Arrangement(finder).steps
        for handle in handles:
            handle.remove()
    except Exception as error:  # whatever a network raises there
        said = str(error).splitlines()[0][:80] if str(error) else ''
        steps, reasons = [], {f'{type(error).__name__}: {said}': 1}
    else:
        reasons = Counter(step.left_out for step in steps if step.left_out)
        for (_, reason), count in finder.missed.items():
            reasons[reason] += count
    recorded = [step for step in steps if not step.left_out]
    return '\t'.join(map(str, (
        library, module(library, name), name, len(recorded),
        len({s.stage for s in recorded}),
        '; '.join(f'{n} {reason}' for reason, n in reasons.items()))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('out', type=Path)
    parser.add_argument('--library', choices=['torchvision', 'timm'],
                        required=True)
    parser.add_argument('--families', action='store_true',
                        help='of each module of timm the first model alone')
    args = parser.parse_args()
    args.out.touch()
    known = {line.split('\t')[2]
             for line in args.out.read_text(encoding='utf-8').splitlines()
             if line.startswith(args.library)}
    for name in names(args.library, args.families):
        if name not in known:
            with args.out.open('a', encoding='utf-8') as file:
                file.write(line(args.library, name) + '\n')
    lines = [text.split('\t') for text in args.out.read_text(
        encoding='utf-8').splitlines()]
    of_library = [cells for cells in lines if cells[0] == args.library]
    failed = [c for c in of_library if 'Error: ' in c[5]]
    without = Counter(
        c[1] for c in of_library if c[3] == '0' and c not in failed)
    print(f'{len(of_library)} models, '
          f'{len(of_library) - without.total() - len(failed)} with steps, '
          f'{without.total()} without, '
          f'{len(failed)} that do not run there')
    print('without: ' + ', '.join(
        f'{family} {count}' for family, count in without.most_common()))


if __name__ == '__main__':
    main()
