import ast
import functools
from importlib.util import find_spec

import pytest
import torch

from mmstepnet.steps.tail import dispatch

dispatch.FEWEST_VALUES = 0  # tests take steps by hand over small maps
dispatch.FEWEST_OF_AN_IMAGE = 0
torch.manual_seed(0)  # modules made at collection are the same each time

ALONE = find_spec('mmengine') is None
"""Whether the library is tested without OpenMMLab."""

HOSTS = (
    'benchmarks.propagation',
    'benchmarks.steps',
    'mmcv',
    'mmdet',
    'mmengine',
    'mmpretrain',
    'mmseg',
    'projects',
    'mmstepnet.datasets',
    'mmstepnet.engine',
    'mmstepnet.jobs',
    'mmstepnet.models',
    'mmstepnet.registry',
    'tests.checkpoints',
)
"""What only works with OpenMMLab."""

if ALONE:

    def pytest_ignore_collect(collection_path):
        """Leave out what needs OpenMMLab, read from its imports."""
        if collection_path.suffix != '.py':
            return None
        tree = ast.parse(collection_path.read_text('utf-8'))
        names = [
            f'{getattr(node, "module", "")}.{alias.name}.'.lstrip('.')
            for node in tree.body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        ]
        return (
            True
            if any(
                name.startswith(f'{host}.') for name in names for host in HOSTS
            )
            else None
        )
else:
    from mmengine.config import utils
    from mmengine.utils import ManagerMixin

    # Each `_base_ = 'mmpretrain::…'` reads a hundred YAML files of the host.
    utils.load = functools.cache(utils.load)


def pytest_make_parametrize_id(val):
    """Name the plain values that pytest only counts; the others need an id."""
    if isinstance(val, (torch.dtype, torch.memory_format)):
        return str(val).removeprefix('torch.')
    plain = (str, int, float, type(None))
    if isinstance(val, (list, tuple)):
        if all(isinstance(item, plain) for item in val):
            return ', '.join(map(str, val)) or 'empty'
    if isinstance(val, dict):
        if all(isinstance(item, plain) for item in val.values()):
            return ', '.join(f'{k}={v}' for k, v in val.items()) or 'empty'
    return None


@pytest.fixture
def one_process(tmp_path):
    """A group of this process alone."""
    torch.distributed.init_process_group(
        'gloo', f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


@pytest.fixture(autouse=True)
def isolated():
    """No random number, default scope or logger comes from another test.

    mmengine names loggers and visualizers by the second a runner was made in.
    """
    torch.manual_seed(0)
    yield
    for manager in () if ALONE else subclasses(ManagerMixin):
        manager._instance_dict.clear()
