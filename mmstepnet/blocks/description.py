"""What is known of a residual block of another library, and the table of it.

Blocks are named by their class, so that no library has to be installed. A
description holds for the ``forward`` that it was written for, which it knows
by its fingerprint.
"""

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch.nn as nn
from torch import Tensor

Part = str | Callable[[Any], Any] | None
"""A submodule of a block: its dotted name, or a function that gives it."""


@dataclass(frozen=True)
class StepDescription:
    r"""One residual step of a block.

    .. math::
        x_{t+1} = \mathrm{activation}(\mathrm{identity}(x_t) + f(x_t))

    Attributes:
        branch (Callable): ``branch(block, x)`` gives the output of the
            branch's last convolution where ``norm`` is set, else f itself: all
            that is added to the identity, layer scale included, before
            stochastic depth. The first step of a block also gets the further
            arguments of its forward.
        width (Part): Module whose last convolution, linear layer or norm is
            as wide as f; or a function that gives the number of channels.
        norm (Part): Norm behind the last convolution, where nothing follows
            it. None: the branch is f. Defaults to None.
        identity (str, optional): Submodule that projects the identity, which
            may be None or ``nn.Identity``. Defaults to None.
        activation (Part): What follows the sum; in a post-norm Transformer
            this is the norm. Defaults to None.
        drop_path (Part): Stochastic depth. Defaults to None.
        layout (str): ``'NCHW'``, ``'NHWC'`` or, tokens, ``'NLC'``. Defaults to
            ``'NCHW'``.
        name (str): Attribute of the block that the step becomes. Defaults to
            ``'step'``.
    """

    branch: Callable[..., Tensor]
    width: Part
    norm: Part = None
    identity: str | None = None
    activation: Part = None
    drop_path: Part = None
    layout: str = 'NCHW'
    name: str = 'step'

    def __post_init__(self):
        if self.layout not in ('NCHW', 'NHWC', 'NLC'):
            raise ValueError(f"layout must be 'NCHW', 'NHWC' or 'NLC', got "
                             f'{self.layout!r}')

    @property
    def has_map(self) -> bool:
        """Whether the state is a map, not a set of tokens."""
        return self.layout != 'NLC'

    def channels(self, block: nn.Module) -> int:
        """Number of channels of f."""
        width = find_part(block, self.width)
        if isinstance(width, int):
            return width
        for module in reversed(list(width.modules())):
            for attribute in ('num_features', 'out_channels', 'out_features',
                              'normalized_shape'):
                if hasattr(module, attribute):
                    value = getattr(module, attribute)
                    return value[-1] if isinstance(value, tuple) else value
        raise TypeError(
            f'{qualified_name(type(block))}: width must name a module with a '
            f'convolution, a linear layer or a norm, or give an integer, got '
            f'{width!r}')

    def projects(self, block: nn.Module) -> bool:
        """Whether the block projects its identity."""
        projection = find_part(block, self.identity)
        return not (projection is None or type(projection) is nn.Identity)


@dataclass(frozen=True)
class KnownBlock:
    """A class of residual blocks.

    Attributes:
        name (str): Qualified name of the class.
        steps (tuple): Its :class:`StepDescription`, in their order.
        forwards (Mapping[str, str]): Fingerprints of the ``forward`` that is
            described, each with the versions that it was tried with. Empty
            trusts any.
        residual (str | Callable, optional): Attribute, or function of the
            block, that says whether a block adds an identity at all. None
            means every block. Defaults to None.
    """

    name: str
    steps: tuple[StepDescription, ...]
    forwards: Mapping[str, str]
    residual: str | Callable[[nn.Module], bool] | None = None

    def is_residual(self, block: nn.Module) -> bool:
        """Whether the block adds an identity."""
        return self.residual is None or bool(find_part(block, self.residual))


KNOWN_BLOCKS: dict[str, KnownBlock] = {}
"""Descriptions by the qualified names of the blocks' classes."""


def find_part(block: Any, part: Part) -> Any:
    """A part of a block, by its dotted name or a function."""
    if part is None:
        return None
    if not isinstance(part, str):
        return part(block)
    for name in part.split('.'):
        block = getattr(block, name)
    return block


def qualified_name(cls: type) -> str:
    """Module and name of a class."""
    return f'{cls.__module__}.{cls.__qualname__}'


@cache
def fingerprint(forward: Callable) -> str:
    """Fingerprint of what a function computes.

    Comments, docstrings, annotations, line breaks and quotes do not count;
    everything else does, names included. What a decorator made of a function
    is another one.

    Args:
        forward (Callable): A function whose source can be read.

    Returns:
        str: 12 hexadecimal digits.

    Raises:
        OSError: It has no source, or none that stands alone.
        TypeError: It is no function.
    """
    code = getattr(forward, '__code__', None)  # which sees no __wrapped__
    if code is None:
        raise TypeError(f'{forward!r} is no function')
    source = textwrap.dedent(inspect.getsource(code))
    try:
        function: Any = ast.parse(source).body[0]
    except SyntaxError as error:  # such as a lambda's, in the middle of a call
        raise OSError(f'the source of {forward!r} is no function') from error
    function.decorator_list = []
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.Assign):
            node.targets = list(map(_bare, node.targets))
        elif isinstance(node, (ast.For, ast.comprehension)):
            node.target = _bare(node.target)
    return hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:12]


def _bare(target: ast.expr) -> ast.expr:
    """A tuple that is assigned to, as text: Python 3.10 would bracket it."""
    if isinstance(target, ast.Tuple) and target.elts:
        return ast.Name(ast.unparse(target)[1:-1])
    return target


def register_block(cls: str | type,
                   *steps: StepDescription,
                   forwards: Mapping[str, str] | None = None,
                   residual: str | Callable | None = None) -> None:
    """Describe a class of residual blocks, so that steps can be put in.

    Args:
        cls (str | type): The class, or its qualified name where its library
            is not to be imported.
        *steps (StepDescription): Its steps: one of a convolutional block,
            two (attention, MLP) of a Transformer's.
        forwards (Mapping[str, str], optional): See :class:`KnownBlock`. None
            takes the fingerprint of the ``forward`` that a class has now, and
            trusts any where only its name is given or there is no source.
            Defaults to None.
        residual (str | Callable, optional): See :class:`KnownBlock`. Defaults
            to None.

    Raises:
        TypeError: There is no step.
        ValueError: Two steps have one name, or the class has a description
            already.

    Example:
        >>> import torch.nn as nn
        >>> from mmstepnet import insert_steps
        >>> from mmstepnet.blocks import StepDescription, register_block
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.conv = nn.Conv2d(8, 8, 3, padding=1)
        ...         self.norm = nn.BatchNorm2d(8)
        ...     def forward(self, x):
        ...         return x + self.norm(self.conv(x))
        >>> register_block(Block, StepDescription(
        ...     branch=lambda block, x: block.conv(x),
        ...     norm='norm', width='norm'))
        >>> insert_steps(nn.Sequential(Block(), Block()))
        ['0', '1']
    """
    name = cls if isinstance(cls, str) else qualified_name(cls)
    if not steps or not all(isinstance(s, StepDescription) for s in steps):
        raise TypeError(f'{name}: give one StepDescription for each residual '
                        f'step of the block, got {steps!r}')
    if len({step.name for step in steps}) < len(steps):
        raise ValueError(f'{name}: each step needs a name of its own, got '
                         f'{[step.name for step in steps]}')
    if name in KNOWN_BLOCKS:
        raise ValueError(f'{name} has a description already; a subclass of it '
                         f'can have another')
    if forwards is None:
        forwards = {} if isinstance(cls, str) else _present_forward(cls)
    KNOWN_BLOCKS[name] = KnownBlock(name, steps, dict(forwards), residual)


def _present_forward(cls: type) -> dict[str, str]:
    try:
        return {fingerprint(cls.forward): 'the one that was registered'}
    except (OSError, TypeError):  # typed into an interpreter, or compiled
        return {}


@cache
def _described(cls: type, entries: int) -> KnownBlock | None:
    """Description of a class by its or its parents' names."""
    for parent in cls.__mro__:
        if qualified_name(parent) in KNOWN_BLOCKS:
            return KNOWN_BLOCKS[qualified_name(parent)]
    return None


def describe(cls: type) -> KnownBlock | None:
    """Find the description of a class of blocks.

    Args:
        cls (type): Class of a module.

    Returns:
        KnownBlock | None: That of the class or of the nearest of its parents
        that has one; None where none has.

    Raises:
        RuntimeError: Its ``forward`` is another than the one described.
    """
    known = _described(cls, len(KNOWN_BLOCKS))
    if known is None or not known.forwards:
        return known
    try:
        found = fingerprint(cls.forward)
    except (OSError, TypeError):  # typed into an interpreter, or compiled
        found = '(its source cannot be read)'
    if found in known.forwards:
        return known
    library = known.name.partition('.')[0]
    version = getattr(sys.modules.get(library), '__version__', 'unknown')
    tried = ', '.join(f'{key} ({versions})'
                      for key, versions in known.forwards.items())
    raise RuntimeError(
        f'{qualified_name(cls)}.forward has the fingerprint {found} '
        f'({library} {version}), but the description of {known.name} was '
        f'written for {tried}. Install such a version, leave these blocks out '
        f'by blocks=, or describe the class: '
        f'mmstepnet.register_block({cls.__name__}, ...)')
