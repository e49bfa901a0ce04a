"""Show what the quickstart's models do, through the hosts' inferencers."""

import argparse
from pathlib import Path

from mmstepnet.datasets import load_digit_split

CLASSIFIER = 'resnet20_stepnet_digits'
DETECTOR = 'faster_rcnn_r18_stepnet_digits'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('out', type=Path, help="the quickstart's folder")
    parser.add_argument('what', choices=list(SHOWN))
    return parser.parse_args()


def config_and_checkpoint(work_dir: Path) -> tuple[str, str]:
    """What training left in its work directory."""
    return (str(work_dir / f'{work_dir.name}.py'),
            (work_dir / 'last_checkpoint').read_text())


def classify(out: Path) -> Path:
    """Write pictures of ten digits with the classes they were given."""
    from mmpretrain import ImageClassificationInferencer
    config, checkpoint = config_and_checkpoint(out / CLASSIFIER)
    images, labels, _ = load_digit_split('val')
    chosen = [images[labels == digit][0] for digit in range(10)]
    inferencer = ImageClassificationInferencer(
        config, pretrained=checkpoint, device='cpu')
    pictures = out / 'classification'
    inferencer([image[..., None].repeat(3, axis=-1) for image in chosen],
               show_dir=str(pictures), resize=256)
    return pictures


def detect(out: Path) -> Path:
    """Write some validation pictures with the boxes found in them."""
    from mmdet.apis import DetInferencer  # needs mmcv's ops
    config, checkpoint = config_and_checkpoint(out / DETECTOR)
    data_root = Path('data/digits_detection')
    images = sorted((data_root / 'val').iterdir())[:8]
    inferencer = DetInferencer(config, checkpoint, device='cpu')
    inferencer([str(image) for image in images], batch_size=4,
               out_dir=str(out / 'detection'), no_save_pred=True)
    return out / 'detection' / 'vis'


SHOWN = {'classify': classify, 'detect': detect}


def main() -> None:
    args = parse_args()
    print('pictures:', SHOWN[args.what](args.out))


if __name__ == '__main__':
    main()
