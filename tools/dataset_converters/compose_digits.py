"""Compose the digits detection set: PNG pictures and COCO annotations."""

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path

import cv2
from mmengine.utils import track_iter_progress

from mmstepnet.checks import positive_int
from mmstepnet.datasets.digits import (
    DIGIT_CLASSES,
    DIGIT_SPLITS,
    load_digit_split,
)
from mmstepnet.datasets.digits_composer import (
    RECIPE,
    check_canvas,
    compose,
)

SETTINGS = 'compose_digits.json'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        '--out', type=Path, default=Path('data/digits_detection'),
        help='folder that the data set is or will be in')
    parser.add_argument(
        '--train', type=positive_int, default=1000, help='training pictures')
    parser.add_argument(
        '--val', type=positive_int, default=200, help='validation pictures')
    parser.add_argument(
        '--size', type=height_and_width, default='128x128', metavar='HxW',
        help='height and width of the pictures in px')
    parser.add_argument(
        '--seed', type=int, default=0,
        help='equal seeds and settings give equal data')
    return parser.parse_args()


def height_and_width(text: str) -> tuple[int, int]:
    match = re.fullmatch(r'(\d+)x(\d+)', text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f'expected HxW such as 128x128, got {text!r}')
    size = int(match[1]), int(match[2])
    try:
        check_canvas(size)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from error
    return size


def read_settings(folder: Path) -> dict | None:
    """Settings of the data set in a folder, None where nothing is.

    Raises:
        SystemExit: The folder holds something else.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        settings = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError):
        settings = None
    # What this tool did not make it must not replace.
    if not isinstance(settings, dict) or 'recipe' not in settings:
        raise SystemExit(
            f'--out {folder} holds files, but no data set of this tool (no '
            f'valid {SETTINGS}); give another folder or remove it yourself')
    return settings


def write_split(folder: Path, split: str, count: int, size: tuple[int, int],
                seed: int) -> None:
    """Write a split's pictures and annotations."""
    digits, labels, _ = load_digit_split(split)
    (folder / split).mkdir()
    images, annotations = [], []
    for index in track_iter_progress(range(count)):
        picture, boxes, classes = compose(
            (seed, DIGIT_SPLITS.index(split), index), digits, labels, size)
        name = f'{index:06d}.png'
        path = folder / split / name
        if not cv2.imwrite(str(path), picture):
            raise OSError(f'could not write {path}')
        images.append(
            dict(id=index, file_name=name, height=size[0], width=size[1]))
        for (x1, y1, x2, y2), label in zip(boxes.tolist(), classes.tolist()):
            width, height = x2 - x1, y2 - y1
            annotations.append(dict(
                # pycocotools takes annotation 0 for "no match".
                id=len(annotations) + 1, image_id=index,
                category_id=label + 1, bbox=[x1, y1, width, height],
                area=width * height, iscrowd=0))
    categories = [dict(id=label + 1, name=name)
                  for label, name in enumerate(DIGIT_CLASSES)]
    path = folder / 'annotations' / f'instances_{split}.json'
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dict(
        info=dict(description="scikit-learn's handwritten digits on textured "
                  'canvases'),
        images=images, annotations=annotations, categories=categories)))


def main() -> None:
    args = parse_args()
    settings = dict(
        recipe=RECIPE, train=args.train, val=args.val, size=list(args.size),
        seed=args.seed)
    out = args.out.resolve()
    if read_settings(out) == settings:
        print(f'{out} is complete already')
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and moved in one step, so that a kill leaves no half of a
    # data set where one is looked for.
    with tempfile.TemporaryDirectory(
            prefix=f'.{out.name}-', dir=out.parent) as scratch:
        new = Path(scratch) / 'new'
        new.mkdir()
        for split in DIGIT_SPLITS:
            print(f'{split}: {getattr(args, split)} pictures')
            write_split(new, split, getattr(args, split), args.size, args.seed)
        (new / SETTINGS).write_text(json.dumps(settings, indent=2))
        if out.exists():
            print(f'replacing {out}, which is of other settings')
            shutil.move(out, Path(scratch) / 'old')
        new.rename(out)
    print(f'wrote {out}')


if __name__ == '__main__':
    main()
