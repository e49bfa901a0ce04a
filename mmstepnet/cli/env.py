"""What this package runs on: ``mmstepnet env``.

Every report of a problem should have its output.
"""

import platform
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

import torch

from mmstepnet.version import __version__

DISTRIBUTIONS = (
    'numpy',
    'scipy',
    'safetensors',
    'torch',
    'torchvision',
    'triton',
    'timm',
    'transformers',
    'peft',
    'lightning',
    'onnx',
    'onnxruntime',
    'onnxscript',
    'altair',
    'vl-convert-python',
    'onedl-mmengine',
    'onedl-mmcv',
    'onedl-mmpretrain',
    'onedl-mmdetection',
    'onedl-mmsegmentation',
    'onedl-mim',
    'mmengine',
    'mmcv',
    'mmcv-lite',
    'mmpretrain',
    'mmdet',
    'mmsegmentation',
    'openmim',
)


def run_env() -> None:
    """Print versions, and how many GPUs PyTorch can use."""
    print(f'mmstepnet {__version__}, {Path(__file__).parents[1]}')
    print(f'Python {platform.python_version()}, {platform.platform()}')
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            print(f'{name} {metadata.version(name)}')
    try:
        import_module('mmcv.ops')
    except Exception as error:  # whatever a broken build raises
        print(f'no mmcv.ops: {type(error).__name__}: {error}')
    print(f'CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPUs')
