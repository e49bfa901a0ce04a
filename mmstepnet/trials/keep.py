"""A rung that is kept: what it has learned, as a file."""

import re
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from mmstepnet.files import write_whole
from mmstepnet.steps.files import save_steps

from .rungs import Rung, has_gates
from .trial import Recipe, Trial


def keep_rung(
    trial: Trial, rung: Rung, places: Tensor, recipe: Recipe, path: Path
) -> str:
    """Train a rung, and write what it has learned.

    Args:
        trial (Trial): The network and the pictures.
        rung (Rung): The rung.
        places (Tensor): Pictures that it is trained on.
        recipe (Recipe): How.
        path (Path): The file; ``.safetensors`` is added.

    Returns:
        str: The lines of Python that use it.
    """
    path = path.with_suffix('.safetensors')
    model = trial.train(rung, places, recipe)
    if has_gates(model):
        save_steps(model, path, [trial.head])
        load = f'mmstepnet.load_steps(model, {str(path)!r})'
    else:
        learned = {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                learned[name] = p.detach().cpu().contiguous()
        write_whole(path, safetensors.torch.save(learned))
        read = f'safetensors.torch.load_file({str(path)!r})'
        load = f'model.load_state_dict({read}, strict=False)'
    head: Any = model.get_submodule(trial.head)
    name = re.sub(r'\.(\d+)', r'[\1]', f'model.{trial.head}')
    return (
        f'import mmstepnet, safetensors.torch, torch\n'
        f'{name} = torch.nn.Linear({head.in_features}, {head.out_features}, '
        f'bias={head.bias is not None})\n'
        f'{load}'
    )
