"""A second mode beside the finder: each operation of a pass is known."""

from collections import Counter

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from mmstepnet.steps.spots import run_on
from mmstepnet.tracing import Finder, hooked
from mmstepnet.tracing.additions import AFTER, BEFORE
from mmstepnet.tracing.operations import describe_operation
from tests.families import family_cases, find_family

WITHOUT_RULE = {
    'works element by element, so that its result is no new branch': {
        'cos',
        'eq',
        'ge',
        'gelu',
        'hardsigmoid',
        'hardswish',
        'hardtanh',
        'masked_fill',
        'ne',
        'pow',
        'rsqrt',
        'sigmoid',
        'silu',
        'sin',
        'tanh',
    },
    'changes a tensor by its own mean, variance or sum, and mixes nothing': {
        '_safe_softmax',
        '_softmax',
        'all',
        'cumsum',
        'mean',
        'native_batch_norm',
        'native_layer_norm',
        'sum',
        'var_mean',
    },
    'moves values to other places': {
        'as_strided',
        'cat',
        'copy',
        'im2col',
        'index',
        'repeat',
        'roll',
        'stack',
        'transpose',
        'upsample_nearest2d',
    },
    'is made of no tensor of the pass, or gives none': {
        '_local_scalar_dense',
        'arange',
        'fill',
        'full',
        'ones',
        'scalar_tensor',
    },
}
"""Operations of which tags alone are propagated, and why that is right."""


class Witness(TorchDispatchMode):
    """Counts all operations of a pass but views."""

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.counts: Counter = Counter()
        self.unknown: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operation = describe_operation(func)
        if not operation.views:
            self.counts[operation.name] += 1
            if not is_known(operation):
                self.unknown.add(operation.name)
        return func(*args, **(kwargs or {}))

    def begin(self, *_):
        self.__enter__()

    def end(self, *_):
        self.__exit__(None, None, None)


def is_known(operation):
    """Whether a rule, a property or the list says what it does to states."""
    name = operation.name
    has_rule = name in BEFORE or name in AFTER
    has_property = (
        operation.mixes
        or operation.random
        or operation.blank
        or not operation.carries
    )
    return (
        has_rule or has_property or name in set().union(*WITHOUT_RULE.values())
    )


class CountingFinder(Finder):
    """Counts the operations that it inspects."""

    def __init__(self, model):
        super().__init__(model, traces=True)
        self.counts: Counter = Counter()

    def _inspect(self, operation, args, kwargs):
        self.counts[operation.name] += 1
        return super()._inspect(operation, args, kwargs)


@pytest.mark.parametrize(('library', 'name'), family_cases())
def test_each_operation_is_seen_and_known(library, name):
    family = find_family(library, name)
    model = family.build()

    def follow(model, args, kwargs):
        finder, witness = CountingFinder(model), Witness()
        with finder.following():
            # Entered behind the finder, the witness sees each operation first.
            handles = [
                model.register_forward_pre_hook(witness.begin),
                model.register_forward_hook(
                    witness.end, prepend=True, always_call=True
                ),
            ]
            with hooked(handles):
                model(*args, **kwargs)
        return finder, witness

    example = dict(family.options).get('example', family.inputs())
    ((finder, witness),) = run_on(example, model, follow, None)
    assert finder.counts == witness.counts
    assert witness.counts.total() > 0
    assert not witness.unknown
