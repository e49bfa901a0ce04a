"""Stiffness of torchvision's ResNet-50 on a folder of pictures, as figures.

    python examples/stiffness_of_resnet50.py PICTURES --weights resnet50.pth

PICTURES is a folder of PNG and JPEG files, with or without folders in it.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, read_image
from torchvision.models import ResNet50_Weights, resnet50

from mmstepnet import TrajectoryRecorder
from mmstepnet.figures import save_stiffness_figures
from mmstepnet.stiffness import READINGS

SUFFIXES = ('.png', '.jpg', '.jpeg')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('pictures', type=Path, help='folder of pictures')
    parser.add_argument(
        '--weights', help="file of torchvision's weights. Default: those of "
        'ImageNet, which torchvision downloads')
    parser.add_argument('--out', type=Path, default=Path('resnet50_stiffness'))
    parser.add_argument('--batch-size', type=int, default=16)
    return parser.parse_args()


def read_pictures(folder: Path) -> list[Tensor]:
    """Pictures as the network was trained to see them, (3, 224, 224)."""
    paths = sorted(path for path in folder.rglob('*')
                   if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise SystemExit(f'no picture {", ".join(SUFFIXES)} in {folder}')
    prepare = ResNet50_Weights.IMAGENET1K_V1.transforms()
    return [prepare(read_image(str(path), ImageReadMode.RGB))
            for path in paths]


def main() -> None:
    args = parse_args()
    pictures = read_pictures(args.pictures)
    if args.weights:
        model = resnet50()
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    else:
        model = resnet50(weights=ResNet50_Weights.IMAGENET1K_V1)
    model.eval()

    with TrajectoryRecorder(model) as recorder, torch.inference_mode():
        for start in range(0, len(pictures), args.batch_size):
            model(torch.stack(pictures[start:start + args.batch_size]))
            print(f'\r{len(recorder)} of {len(pictures)} pictures', end='',
                  flush=True)
    print()

    trajectories = recorder.trajectories(
        model='ResNet-50', split=args.pictures.name)
    trajectories.save(args.out / 'stiffness.npz')
    save_stiffness_figures(trajectories, args.out, 'resnet50')
    for reading in READINGS:
        print(f'{reading:9} NSI {trajectories.nsi(reading).mean():.3f}  '
              f'TNS {trajectories.tns(reading):.3f}')
    print(f'{len(trajectories)} pictures, '
          f'{len(trajectories.blocks)} blocks: {args.out}')


if __name__ == '__main__':
    main()
