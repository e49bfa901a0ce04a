"""The digits detection set as files: PNG pictures and COCO annotations."""

import json
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

import cv2
from mmengine.utils import track_iter_progress

from .digits import DIGIT_CLASSES, DIGIT_SPLITS, load_digit_split
from .digits_composer import RECIPE, compose

SETTINGS = 'compose_digits.json'
HEIGHT, WIDTH = 128, 128


def write_digits(args: Namespace) -> None:
    """Write the data set of ``tools/dataset_converters/compose_digits.py``."""
    settings = dict(
        recipe=RECIPE,
        train=args.train,
        val=args.val,
        size=[HEIGHT, WIDTH],
        seed=args.seed,
    )
    out = args.out.resolve()
    if read_settings(out) == settings:
        print(f'{out} is complete already')
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and moved in one step, so that a kill leaves no half of a
    # data set where one is looked for.
    with tempfile.TemporaryDirectory(
        prefix=f'.{out.name}-', dir=out.parent
    ) as scratch:
        new = Path(scratch) / 'new'
        new.mkdir()
        for split in DIGIT_SPLITS:
            print(f'{split}: {getattr(args, split)} pictures')
            write_split(new, split, getattr(args, split), args.seed)
        (new / SETTINGS).write_text(json.dumps(settings, indent=2))
        if out.exists():
            print(f'replacing {out}, which is of other settings')
            shutil.move(out, Path(scratch) / 'old')
        new.rename(out)
    print(f'wrote {out}')


def read_settings(folder: Path) -> dict | None:
    """Settings of the data set in a folder, None where nothing is.

    Raises:
        SystemExit: The folder holds something else.
    """
    if (folder / SETTINGS).exists():
        return json.loads((folder / SETTINGS).read_text())
    # What this tool did not make it must not replace.
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(
            f'--out {folder} holds files, but no data set of this tool (no '
            f'{SETTINGS}); give another folder or remove it yourself'
        )
    return None


def write_split(folder: Path, split: str, count: int, seed: int) -> None:
    """Write a split's pictures and annotations."""
    digits, labels, _ = load_digit_split(split)
    (folder / split).mkdir()
    images, annotations = [], []
    for index in track_iter_progress(range(count)):
        picture, boxes, classes = compose(
            (seed, DIGIT_SPLITS.index(split), index),
            digits,
            labels,
            (HEIGHT, WIDTH),
        )
        name = f'{index:06d}.png'
        path = folder / split / name
        if not cv2.imwrite(str(path), picture):
            raise OSError(f'could not write {path}')
        images.append(
            dict(id=index, file_name=name, height=HEIGHT, width=WIDTH)
        )
        for (x1, y1, x2, y2), label in zip(boxes.tolist(), classes.tolist()):
            annotations.append(
                dict(
                    # pycocotools takes annotation 0 for "no match".
                    id=len(annotations) + 1,
                    image_id=index,
                    category_id=label + 1,
                    bbox=[x1, y1, x2 - x1, y2 - y1],
                    area=(x2 - x1) * (y2 - y1),
                    iscrowd=0,
                )
            )
    categories = [
        dict(id=label + 1, name=name)
        for label, name in enumerate(DIGIT_CLASSES)
    ]
    path = folder / 'annotations' / f'instances_{split}.json'
    path.parent.mkdir(exist_ok=True)
    description = "scikit-learn's handwritten digits on textured canvases"
    path.write_text(
        json.dumps(
            dict(
                info=dict(description=description),
                images=images,
                annotations=annotations,
                categories=categories,
            )
        )
    )
