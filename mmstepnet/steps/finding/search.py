"""Which residual steps a model has, and what to say where none is found."""

import torch
import torch.nn as nn

from .finder import Finder
from .modes import hooked, in_mode
from .stages import Arrangement, FoundStep
from .wrappers import unwrap


def find_steps(model: nn.Module, *inputs: object,
               **named: object) -> list[FoundStep]:
    r"""Find the residual steps of a model by running it, without measuring.

    A residual step (Eq. 1 and 4),

    .. math::
        x_{t+1} = x_t + f(x_t) \Delta t,

    is an addition of a state to something that was computed from this state
    by a contraction: a convolution, a matrix product, attention, pooling, an
    FFT or an operator that PyTorch does not know. A state is a tensor that a
    module was given or returned. What wrote the addition, wrapped the block
    or patched its ``forward`` does not matter, and no class is known by name.

    The model runs in evaluation mode and without gradients, and is left as it
    was. On the meta device, or under ``FakeTensorMode``, nothing is computed:
    a network of any size is described in about a second.

    Args:
        model (nn.Module): Model, or a wrapper of one.
        *inputs: What its ``forward`` takes.
        **named: The same by name.

    Returns:
        list[FoundStep]: In the order of the pass, also what
        :class:`TrajectoryRecorder` leaves out, with the reason.

    Raises:
        TypeError: ``model`` is no module, or was made by ``torch.jit``.

    Example:
        >>> import torch
        >>> from torchvision.models import resnet50
        >>> from mmstepnet import find_steps
        >>> with torch.device('meta'):
        ...     steps = find_steps(resnet50(), torch.rand(1, 3, 224, 224))
        >>> print(steps[1])
        layer1.1: (1, 256, 56, 56), recorded
    """
    finder = Finder(unwrap(model))
    with (hooked(finder.attach()), in_mode(finder.model, False),
          torch.no_grad()):
        model(*inputs, **named)
    return Arrangement(finder).steps


def explain(finder: Finder, steps: list[FoundStep]) -> str:
    """What was seen where nothing can be recorded."""
    seen = [*(f'{step.name}: {step.left_out}' for step in steps),
            *(f'{count} sums in {name or "the model itself"}: {reason}'
              for (name, reason), count in finder.missed.most_common())]
    return '\n  '.join([
        f'no residual step of {type(finder.model).__name__} can be recorded.',
        *([f'Found, but left out, the first of {len(seen)}:', *seen[:9]]
          if seen else [
            'It has no residual blocks, or adds no two plain tensors where '
            'hooks and dispatch modes see it. PyTorch makes nested ones of a '
            'padding mask, unless torch.backends.mha.set_fastpath_enabled('
            'False) was called'])])
