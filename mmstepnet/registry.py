"""The package's nodes in OpenMMLab's registry tree.

Every node has the scope ``mmstepnet`` and a parent in mmengine, and knows
where its modules live. So ``type='mmstepnet.StepResNet'`` builds inside an
MMPretrain or MMDetection config with neither ``custom_imports`` nor a
registration call.
"""

from .compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from mmengine import registry as mmengine_registry  # noqa: E402
from mmengine.registry import Registry  # noqa: E402

MODELS = Registry(
    'model',
    parent=mmengine_registry.MODELS,
    scope='mmstepnet',
    locations=['mmstepnet.models'])
"""Backbones and norm layers."""

DATASETS = Registry(
    'dataset',
    parent=mmengine_registry.DATASETS,
    scope='mmstepnet',
    locations=['mmstepnet.datasets'])
"""Data sets, the embedded ones among them."""

DATA_SAMPLERS = Registry(
    'data sampler',
    parent=mmengine_registry.DATA_SAMPLERS,
    scope='mmstepnet',
    locations=['mmstepnet.datasets'])
"""Samplers and batch samplers."""

HOOKS = Registry(
    'hook',
    parent=mmengine_registry.HOOKS,
    scope='mmstepnet',
    locations=['mmstepnet.engine', 'mmstepnet.jobs'])
"""Hooks of mmengine's runner."""

LOOPS = Registry(
    'loop',
    parent=mmengine_registry.LOOPS,
    scope='mmstepnet',
    locations=['mmstepnet.jobs'])
"""Loops of mmengine's runner."""

OPTIM_WRAPPERS = Registry(
    'optim_wrapper',
    parent=mmengine_registry.OPTIM_WRAPPERS,
    scope='mmstepnet',
    locations=['mmstepnet.engine'])
"""What calls the optimizer."""

METRICS = Registry(
    'metric',
    parent=mmengine_registry.METRICS,
    scope='mmstepnet',
    locations=['mmstepnet.engine'])
"""Metrics of mmengine's evaluator."""
