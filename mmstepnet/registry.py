"""The package's nodes in OpenMMLab's registry tree.

Every node has the scope ``mmstepnet`` and a parent in mmengine, and knows
where its modules live. So ``type='mmstepnet.StepResNet'`` builds inside an
MMPretrain or MMDetection config with neither ``custom_imports`` nor a
registration call.
"""

from .compatibility import check_hosts

check_hosts('mmengine', 'mmcv')

from mmengine.registry import (  # noqa: E402
    DATA_SAMPLERS as MMENGINE_DATA_SAMPLERS,
)
from mmengine.registry import DATASETS as MMENGINE_DATASETS  # noqa: E402
from mmengine.registry import HOOKS as MMENGINE_HOOKS  # noqa: E402
from mmengine.registry import LOOPS as MMENGINE_LOOPS  # noqa: E402
from mmengine.registry import METRICS as MMENGINE_METRICS  # noqa: E402
from mmengine.registry import MODELS as MMENGINE_MODELS  # noqa: E402
from mmengine.registry import (  # noqa: E402
    OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS,
)
from mmengine.registry import Registry  # noqa: E402

from . import attentions, propagation  # noqa: E402

MODELS = Registry(
    'model',
    parent=MMENGINE_MODELS,
    scope='mmstepnet',
    locations=['mmstepnet.models'])
"""Backbones and norm layers."""

DATASETS = Registry(
    'dataset',
    parent=MMENGINE_DATASETS,
    scope='mmstepnet',
    locations=['mmstepnet.datasets'])
"""Data sets, the embedded ones among them."""

DATA_SAMPLERS = Registry(
    'data sampler',
    parent=MMENGINE_DATA_SAMPLERS,
    scope='mmstepnet',
    locations=['mmstepnet.datasets'])
"""Samplers and batch samplers."""

HOOKS = Registry(
    'hook',
    parent=MMENGINE_HOOKS,
    scope='mmstepnet',
    locations=['mmstepnet.engine', 'mmstepnet.jobs'])
"""Hooks of mmengine's runner."""

LOOPS = Registry(
    'loop',
    parent=MMENGINE_LOOPS,
    scope='mmstepnet',
    locations=['mmstepnet.jobs'])
"""Loops of mmengine's runner."""

OPTIM_WRAPPERS = Registry(
    'optim_wrapper',
    parent=MMENGINE_OPTIM_WRAPPERS,
    scope='mmstepnet',
    locations=['mmstepnet.engine'])
"""What calls the optimizer."""

METRICS = Registry(
    'metric',
    parent=MMENGINE_METRICS,
    scope='mmstepnet',
    locations=['mmstepnet.engine'])
"""Metrics of mmengine's evaluator."""

ATTENTIONS = Registry(
    'attention',
    scope='mmstepnet',
    locations=['mmstepnet.attentions'])
# One dict for both: what is registered in either is found in the other.
ATTENTIONS._module_dict = attentions.ATTENTIONS
"""Rules that choose the residual step, see :class:`Attention`."""

PSEUDO_METRICS = Registry(
    'pseudo-metric',
    scope='mmstepnet',
    locations=['mmstepnet.propagation'])
# As above.
PSEUDO_METRICS._module_dict = propagation.PSEUDO_METRICS
"""What attention compares points by, see :class:`PseudoMetric`."""

PROPAGATIONS = Registry(
    'propagation',
    scope='mmstepnet',
    locations=['mmstepnet.propagation'])
# As above.
PROPAGATIONS._module_dict = propagation.PROPAGATIONS
"""Modules that inform tokens, points or nodes by each other, see
:class:`Propagation` and :class:`AttentionBlock`."""


def find_registered(registry: Registry, name: str | type,
                    what: str) -> type:
    """Look a class up, whatever the default scope is.

    Args:
        registry (Registry): Where it is.
        name (str | type): Its name, or the class, as in mmengine's new-style
            configs.
        what (str): What it is, for the message.

    Raises:
        KeyError: It is not registered; the message lists what is.
    """
    registry.import_from_location()
    if isinstance(name, type):
        found = name if name in registry.module_dict.values() else None
    else:
        found = registry.module_dict.get(
            str(name).removeprefix('mmstepnet.'))
    if found is None:
        raise KeyError(f'{what} {name!r} is unknown; registered are '
                       f'{sorted(registry.module_dict)}')
    return found
