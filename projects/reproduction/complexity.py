"""Parameters and floating-point operations of a model.

What is counted as an operation: each multiplication and each addition of
convolutions, linear layers and matrix products (two for a multiply-add, by
PyTorch's own formulas), and, one for each element, everything that PyTorch's
counter leaves out: products, sums, activations, pooling and norms, which
weigh in where an attention is set beside a plain network. Copies, views,
indexing and padding count nothing. Residual steps are counted as their
formulas stand, not as the fused kernel computes them.
"""

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS
from torch.utils.flop_counter import FlopCounterMode

from mmstepnet.jobs.job import find_host, init_scope
from mmstepnet.steps import fused

ELEMENTWISE = ('add', 'sub', 'rsub', 'mul', 'div', 'neg', 'abs', 'pow',
               'sqrt', 'rsqrt', 'reciprocal', 'exp', 'log', 'erf', 'maximum',
               'minimum', 'sigmoid', 'tanh', 'relu', 'leaky_relu',
               '_prelu_kernel', 'clamp', 'clamp_min', 'clamp_max',
               'threshold', 'hardtanh', 'hardswish', 'hardsigmoid', 'gelu',
               'silu', 'mish', 'elu', 'softplus')
"""ATen operators of one operation for each element that comes out.

Their forms in place cost the same.
"""

REDUCTIONS = ('mean', 'sum', 'amax', 'max', 'linalg_vector_norm',
              '_adaptive_avg_pool2d', 'adaptive_max_pool2d')
"""ATen operators of one operation for each element that goes in."""


def _elements(shape) -> int:
    """Elements of a tensor, or of the first of several."""
    while shape and not isinstance(shape[0], int):
        shape = shape[0]
    return math.prod(shape)


def _elementwise(*args, out_shape=None, **kwargs) -> int:
    return _elements(out_shape)


def _reduction(in_shape, *args, out_shape=None, **kwargs) -> int:
    return _elements(in_shape)


def _times(count: int):
    def formula(in_shape, *args, out_shape=None, **kwargs) -> int:
        return count * _elements(in_shape)
    return formula


def _window(in_shape, kernel, *args, out_shape=None, **kwargs) -> int:
    return math.prod(kernel) * _elements(out_shape)


FORMULAS = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys([f'{name}_' for name in ELEMENTWISE], _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduction),
    # x * a + b, with a and b known beforehand in inference.
    'native_batch_norm': _times(2),
    '_native_batch_norm_legit_no_training': _times(2),
    'cudnn_batch_norm': _times(2),
    'addcmul': _times(2),
    # Mean, deviation, its square and their sum, normalisation, scale, shift.
    'native_layer_norm': _times(7),
    'native_group_norm': _times(7),
    'var': _times(4),
    # Maximum, difference, exponential, sum, quotient.
    '_softmax': _times(5),
    '_safe_softmax': _times(5),
    'max_pool2d_with_indices': _window,
    'avg_pool2d': _window,
}
"""Formulas of ATen operators that PyTorch's counter does not know."""


@dataclass(frozen=True)
class Complexity:
    """Size and cost of a model.

    Attributes:
        parameters (int): All parameters of the model, frozen ones included.
        flops (int, optional): Operations for one image, see this module;
            None where the data are no images.
        input_size (tuple[int, int], optional): Height and width of the
            image.
        part (str): What of the model the operations are counted of.
    """

    parameters: int
    flops: int | None
    input_size: tuple[int, int] | None
    part: str


def count_parameters(model: nn.Module) -> int:
    """Count all parameters, frozen ones included."""
    return sum(p.numel() for p in model.parameters())


def count_flops(model: nn.Module, shape: tuple[int, ...]) -> dict[str, int]:
    """Count the operations of a forward pass in inference.

    Nothing is computed: a copy of the model runs on PyTorch's meta device.

    Args:
        model (nn.Module): Model that takes one tensor.
        shape (tuple[int, ...]): Its shape, (N, C, H, W).

    Returns:
        dict[str, int]: Operations by operator, such as ``'convolution'``.
    """
    model = copy.deepcopy(model).to('meta')
    model.train(False)  # some backbones of the hosts return None
    # PyTorch versions differ in their operators.
    formulas = {
        getattr(torch.ops.aten, name): formula
        for name, formula in FORMULAS.items() if hasattr(torch.ops.aten, name)
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with torch.no_grad(), fused(False), counter:
        model(torch.empty(shape, device='meta'))
    total = counter.get_flop_counts()['Global']
    return {str(op).rpartition('.')[2]: n for op, n in total.items()}


class _Features(nn.Module):
    """A detector up to its neck: heads see as many regions as they find."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.extract_feat(x)


def input_size(cfg: Config) -> tuple[int, int]:
    """Height and width of the images that a config's model is tested on.

    A detector's are those of a landscape image, padded as the config says.

    Raises:
        ValueError: The pipeline does not say it.
    """
    # Small images are tested whole, and cropped to that size in training.
    for loader in ('test_dataloader', 'train_dataloader'):
        for step in reversed(cfg[loader].dataset.pipeline):
            size = step.get('crop_size') or step.get('scale')
            if size is None:
                continue
            width, height = (size, size) if isinstance(size, int) else size
            preprocessor = cfg.model.get('data_preprocessor', {})
            divisor = preprocessor.get('pad_size_divisor', 1)
            return (math.ceil(height / divisor) * divisor,
                    math.ceil(width / divisor) * divisor)
    raise ValueError(
        f'{cfg.filename}: neither test_dataloader nor train_dataloader has a '
        'crop_size or scale, so the size of its images is unknown')


def measure_complexity(path: str) -> Complexity:
    """Count parameters and operations of a config's model.

    Operations are those of one image. Of a detector, they are those of
    backbone and neck. Where the data are no images, which a data set without
    a pipeline tells, parameters alone are counted: what a graph or a
    sentence costs depends on its size.

    Args:
        path (str): Config of MMPretrain, MMDetection or ours.
    """
    cfg = Config.fromfile(path)
    init_scope(cfg)
    host = find_host(cfg)
    preprocessor = cfg.get('data_preprocessor')
    if preprocessor and host == 'mmpretrain':
        cfg.model.setdefault('data_preprocessor', preprocessor)
    model = MODELS.build(cfg.model)
    if 'pipeline' not in cfg.test_dataloader.dataset:
        return Complexity(count_parameters(model), None, None, 'whole model')
    size = input_size(cfg)
    flops = count_flops(_Features(model) if host == 'mmdet' else model,
                        (1, 3, *size))
    return Complexity(
        parameters=count_parameters(model), flops=sum(flops.values()),
        input_size=size,
        part='backbone and neck' if host == 'mmdet' else 'whole model')
