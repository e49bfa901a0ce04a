"""A plugin for pytest: the hosts' own tests, on networks that have steps.

    git clone https://github.com/open-mmlab/mmpretrain
    python -m pytest --import-mode=importlib -p tests.zoo.with_steps \
        mmpretrain/tests/test_models/test_backbones
    git clone https://github.com/huggingface/pytorch-image-models
    python -m pytest --import-mode=importlib -p tests.zoo.with_steps \
        pytorch-image-models/tests/test_models.py

What MMPretrain's tests build is our backbone in place of its own, with steps
that change nothing; what timm's build has StepNet in all blocks. Networks in
which no block can take steps stay as they are. Without the plugin the same
commands tell what fails anyway.
"""

import inspect
from abc import ABCMeta
from importlib.util import find_spec

import mmstepnet


def pytest_configure(config) -> None:
    """Put steps into whatever the hosts' tests will build."""
    if find_spec('mmpretrain'):
        import mmpretrain.models.backbones as backbones
        from mmengine.registry import DefaultScope
        DefaultScope.get_instance('steps', scope_name='mmpretrain')
        for name in backbones.__all__:
            setattr(backbones, name, exchanged_class(getattr(backbones, name)))
    if find_spec('timm'):
        import timm
        timm.create_model = with_steps(timm.create_model)


def says_none(error: ValueError) -> bool:
    """Whether it says that no block of a network can take steps."""
    return any(text in str(error) for text in (
        'can take steps', 'none got a step'))


def exchanged_class(host: type) -> type:
    """A class whose call builds our backbone in the place of the host's."""
    from mmengine.registry import MODELS

    from .backbones import exchanged

    class Exchanged(ABCMeta):
        def __call__(cls, *args, **kwargs):
            if cls is not stands_in:
                return super().__call__(*args, **kwargs)
            bound = inspect.signature(host).bind(*args, **kwargs).arguments
            given = {**bound.pop('kwargs', {}), **bound}
            try:
                return MODELS.build(exchanged(
                    dict(given, type=host.__name__), 'mmpretrain'))
            except ValueError as error:
                if not says_none(error):
                    raise
                return host(*args, **kwargs)

        # isinstance(…, host) would ask all subclasses of the host's class.
        def __instancecheck__(cls, instance):
            return host in type(instance).__mro__

        def __subclasscheck__(cls, subclass):
            return host in subclass.__mro__

    stands_in = Exchanged(host.__name__, (host, ), {
        '__doc__': host.__doc__, '__module__': host.__module__})
    return stands_in


def with_steps(create_model):
    """timm's function, with StepNet in all blocks that can take it."""
    def create(*args, **kwargs):
        model = create_model(*args, **kwargs)
        try:
            mmstepnet.insert_steps(model)
        except ValueError as error:
            if not says_none(error):
                raise
        return model

    return create
