"""The command ``worth``: a thin layer over :mod:`mmstepnet.trials`."""

import json
import sys
from pathlib import Path
from typing import Any

from mmstepnet.trials import compare_rungs

from .networks import load_networks
from .pictures import Pictures


def run_worth(
    *,
    models: list[str],
    weights: list[Path],
    pretrained: bool,
    device: str | None,
    images: Pictures,
    val: Pictures | None,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare rungs, print what came out, and draw it."""
    (network,) = load_networks(
        models, weights, None, pretrained, device, labels=True
    )
    if network.prepare is None:
        raise ValueError(
            f'{network.label} needs a transform of pictures; let FUNCTION '
            f'return the model and one'
        )
    parts = [part for part in (images, val) if part]
    classes = parts[0].classes
    if {*parts[-1].classes} != {*classes}:
        raise ValueError(
            f'{parts[-1].folder} has other classes than {images.folder}'
        )
    if network.classes.keys() == {*classes}:
        classes.sort(key=network.classes.__getitem__)

    def data(part: Pictures) -> Any:
        for path, name in part.files:
            yield network.picture(path), classes.index(name)

    result = compare_rungs(
        network.model,
        data(parts[0]),
        val=data(parts[1]) if val else None,
        names=[path for part in parts for path, _ in part.files],
        out=out,
        **options,
    )
    print(json.dumps(vars(result)) if as_json else result)
    try:
        from mmstepnet.figures.worth import save_worth
    except ImportError as error:
        print(f'no picture: {error}', file=sys.stderr)
        return
    print(save_worth(result, out / 'worth.png'), file=sys.stderr)
