"""Where a gate starts, and the record of it in a checkpoint."""

import json
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.messages import warn
from mmstepnet.torch_version import has_values

KEY = '_extra_state'
"""PyTorch's name of the record, behind the module's in a state dict."""

SIZE = 256
"""Length to which blanks fill a record. Its shape then does not depend on the
arguments: some loaders compare shapes."""


class Recorded(nn.Module):
    """Gate whose state dict records its type and arguments.

    The record is JSON in int64, one number a character. Averages of
    checkpoints treat it as they treat a BN's count of batches. Weights of
    another type or of other arguments are an error, also with
    ``strict=False``; another ``init_step`` is taken over, with a warning. A
    state dict without a record loads, too: one of version 0.2, of another
    library, or of a loop over ``named_parameters()`` and ``named_buffers()``.
    Version 0.3 wrote the record in uint8; one that an average has overflowed
    is ignored, with a warning.
    """

    init_step: float | None
    scale: float

    initial_logits = (0.0,)
    """Inputs of the gate's sigmoids at the start, if ``init_step`` is set. The
    gate is the product of these sigmoids."""

    has_loaded = False
    """Whether weights of its own were loaded."""

    recorded: tuple[str, ...] = ()
    """Further arguments of the constructor: attributes of these names."""

    @property
    def recorded_type(self) -> str:
        """Name under which the class is known."""
        return type(self).__name__

    def set_init_step(self, init_step: float | None) -> None:
        """Let the gate start elsewhere; parameters stay what they are.

        Args:
            init_step (float, optional): See :class:`Attention`.

        Raises:
            ValueError: It is neither None nor a positive finite number.
        """
        number = isinstance(init_step, Real) and not isinstance(
            init_step, bool
        )
        # Its quotient by a gate of sigmoids must not leave float32.
        if init_step is not None and not (number and 1e-30 < init_step < 1e30):
            raise ValueError(
                f'{type(self).__name__}: init_step must be a positive number '
                "(1.0 keeps a pretrained network's output) or None for the "
                f"paper's form, got {init_step!r}"
            )
        self.init_step = None if init_step is None else float(init_step)
        self.scale = warm_start_scale(init_step, *self.initial_logits)

    def record(self) -> dict[str, Any]:
        """Type and arguments, but for ``channels``."""
        return dict(
            type=self.recorded_type,
            init_step=self.init_step,
            **{name: getattr(self, name) for name in self.recorded},
        )

    def get_extra_state(self) -> Tensor:
        """The record: int64, (256, ) or longer, on the CPU."""
        content = json.dumps(self.record()).encode().ljust(SIZE)
        # Not on the default device, which may be meta.
        return torch.tensor(list(content), device='cpu')

    def set_extra_state(self, state: Tensor) -> None:
        """Compare a record with this gate; take its ``init_step`` over.

        Raises:
            ValueError: It is that of another type or of other arguments.
        """
        if not has_values(state):
            return
        # An average or a cast may have rounded it.
        content = state.detach().cpu().double().round().byte().flatten()
        own = self.record()
        try:
            found = own | json.loads(bytes(content.tolist()))
        except (ValueError, TypeError, RecursionError):
            warn(
                f'this is no record of {self.recorded_type}, so it is ignored'
            )
            return
        if found | dict(init_step=self.init_step) != own:
            raise ValueError(
                f'the weights are those of {found}, the model has {own}, '
                'which may compute something else; build it with the '
                f'arguments of the weights, or leave out the keys *.{KEY}'
            )
        if found != own:
            warn(
                f'{self.recorded_type} was built with init_step='
                f'{self.init_step} and takes over init_step='
                f'{found["init_step"]}, with which the weights that it loads '
                f'were trained'
            )
            self.set_init_step(found['init_step'])

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, *args
    ) -> None:
        key = prefix + KEY
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, *args
        )
        if key in missing_keys:
            missing_keys.remove(key)
        if any(name.startswith(prefix) for name in state_dict if name != key):
            self.has_loaded = True
        elif self.init_step is None and any(True for _ in self.parameters()):
            warn(
                f'{self.recorded_type} finds no weights of its own in what is '
                'loaded, and starts as in the paper, for training from '
                'scratch: a pretrained network computes something else with '
                'it. Let it start at a step of 1 by init_step=1.0'
            )


def warm_start_scale(init_step: float | None, *logits: float) -> float:
    """Factor that brings a gate's starting value to ``init_step``.

    Args:
        init_step (float, optional): Wanted starting value; None gives 1.
        *logits (float): What the gate's sigmoids see at the start; the gate
            is their product.

    Returns:
        float: c with ``prod(sigmoid(logits)) * c == init_step``. In float32 it
        is exact wherever float32 holds such a c, and in float64 wherever
        rounding that c to float32 gives the one of float32.
    """
    if init_step is None:
        return 1.0
    # Not on the default device, which may be any.
    gate, gate64 = (
        torch.tensor(logits, dtype=dtype, device='cpu')
        .sigmoid()
        .prod()
        .numpy()
        for dtype in (torch.float32, torch.float64)
    )
    scale = np.float32(init_step) / gate
    for candidate in (
        scale,
        np.nextafter(scale, np.float32(0)),
        np.nextafter(scale, np.float32(np.inf)),
    ):
        if gate * candidate == np.float32(init_step):
            scale = candidate
            break
    exact = float(init_step / gate64)
    return exact if np.float32(exact) == scale else float(scale)
