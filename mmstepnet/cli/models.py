"""Models by a name that says where they come from, for the command."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from tqdm import tqdm

from mmstepnet.steps.examples import call_of
from mmstepnet.steps.files import read_weights

from .early import check_model
from .pictures import Pictures
from .wording import is_of_the_internet

OFFLINE = '--weights FILE, without --pretrained'


def read_file(path: Path) -> dict[str, Tensor]:
    """Weights of a file, see :func:`mmstepnet.steps.files.read_weights`.

    Raises:
        ValueError: It is no file of PyTorch, or holds other objects, such as
            a whole model or the log of a Runner of MMEngine.
    """
    try:
        return read_weights(path)
    except (OSError, ValueError):  # their texts say the reason
        raise
    except Exception as error:  # whatever a reader makes of other bytes
        raise ValueError(
            f'{path} is not read: it is no file of PyTorch, or holds other '
            f'objects than tensors; save the state dict alone or, for a '
            f'checkpoint of a Runner of MMEngine, give mm:CONFIG'
        ) from error


@dataclass
class NamedModel:
    """A model, how it is fed, and how its results are called.

    Attributes:
        model (nn.Module): The model.
        transform (Callable, optional): Makes a tensor (3, H, W) of a picture
            of Pillow, as the library that owns the model does.
        prepare (Callable, optional): Makes one of a file. It is made of the
            transform where there is one; None is unknown.
        batches (Iterable, optional): The model's own batches.
        part (str): Name of the submodule that is measured, such as the
            backbone of a detector; ``''`` is the model.
        runs_whole (bool): Whether the model is run for that, because its
            scores are wanted, and not the part alone.
        classes (dict[str, int]): Number of each class by its name.
        read (Callable): Reads a file of its weights.
        label (str): Its name in lines, files and pages.
        settings (dict): What its recording says of it: ``model``,
            ``weights`` and so on.
    """

    model: nn.Module
    transform: Callable[[Any], Tensor] | None = None
    prepare: Callable[[Path], Tensor] | None = None
    batches: Iterable | None = None
    part: str = ''
    runs_whole: bool = False
    classes: dict[str, int] = field(default_factory=dict)
    read: Callable[[Path], dict[str, Tensor]] = read_file
    label: str = ''
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.transform is not None:
            self.prepare = picture_reader(self.transform)

    @property
    def measured(self) -> nn.Module:
        """The part whose steps are measured."""
        return self.model.get_submodule(self.part)

    @property
    def run(self) -> nn.Module:
        """The part that is called with a batch."""
        return self.model if self.runs_whole else self.measured

    def picture(self, path: str | Path) -> Tensor:
        """A picture as the model takes it."""
        assert self.prepare is not None
        try:
            return self.prepare(Path(path))
        except Exception as error:  # not all that decode say which file
            raise ValueError(f'{path} cannot be read: {error}') from error

    def samples(
        self, pictures: Pictures | None
    ) -> Iterator[tuple[Any, list[str]]]:
        """Batches on the model's device, under a bar.

        Args:
            pictures (Pictures, optional): The pictures. None takes the
                model's own batches.

        Yields:
            tuple: A batch, and the classes of its pictures; no classes where
            the pictures have none.

        Raises:
            ValueError: There is nothing to measure, or no transform of it.
        """
        device = str(next(self.model.parameters()).device)
        if pictures is None and self.batches is not None:
            for batch in tqdm(self.batches, self.label):
                inputs, by_name = call_of(batch, device=device)
                yield inputs or by_name, []
            return
        if self.prepare is None:
            raise ValueError(
                f'{self.label} is a model alone; let its FUNCTION return the '
                f'model and the transform of its pictures, or its batches'
            )
        if pictures is None:
            raise ValueError(
                f'{self.label} needs pictures: give --images FOLDER, or let '
                f'its FUNCTION return the model and its batches'
            )
        if pictures.labels:
            self._number(pictures.classes)
        for files in tqdm(pictures.batches(), self.label):
            batch = torch.stack([self.picture(path) for path, _ in files])
            classes = [name for _, name in files] if pictures.labels else []
            yield batch.to(device), classes

    def _number(self, classes: Sequence[str]) -> None:
        """Number classes by their order where the model has other names."""
        if self.classes.keys() >= {*classes}:
            return
        if self.classes:
            print(
                f'{self.label}: its config has other names than the folders, '
                f'so these are its classes in alphabetical order',
                file=sys.stderr,
            )
        self.classes = {name: k for k, name in enumerate(classes)}

    def is_correct(self, out: Any, classes: Sequence[str]) -> Tensor:
        """Compare the classes of the highest scores with the right ones.

        Args:
            out (Any): The model's output for a batch of N pictures: scores
                (N, C), or an object that has them as ``logits``.
            classes (Sequence[str]): Names of the N right classes.

        Returns:
            Tensor: Whether they agree, (N,), on the CPU.

        Raises:
            ValueError: These are no scores of the C classes.
        """
        scores = getattr(out, 'logits', out)
        if not isinstance(scores, Tensor):
            raise ValueError(
                f'{self.label} gives no scores of classes, which --labels '
                f'needs, but a {type(out).__name__}'
            )
        if scores.shape != (len(classes), len(self.classes)):
            raise ValueError(
                f'{self.label} gives scores of shape {tuple(scores.shape)}, '
                f'but --labels has {len(self.classes)} folders, one a class'
            )
        numbers = torch.tensor([self.classes[name] for name in classes])
        return scores.argmax(1).cpu() == numbers


def build_model(
    name: str, pretrained: bool = False, labels: bool = False
) -> NamedModel:
    """Build a model by its name.

    Args:
        name (str): As in :data:`KINDS`.
        pretrained (bool): Whether the library fetches weights. A folder of
            ``hf:`` brings its own. Defaults to False.
        labels (bool): Whether scores of classes are wanted. Defaults to
            False.

    Raises:
        ValueError: The name is of no such form, the model is unknown, or
            what is needed of it is on the internet alone, and that is not
            reached.
    """
    check_model(name)
    check_known(name)
    kind, _, rest = name.partition(':')
    builders: dict[str, Callable] = dict(
        timm=_timm,
        torchvision=_torchvision,
        mm=_openmmlab,
        hf=partial(_transformers, labels=labels),
    )
    if kind not in builders:
        path, _, function = name.rpartition(':')
        return _from_file(Path(path), function)
    try:
        return builders[kind](rest, pretrained)
    except Exception as error:
        if not is_of_the_internet(error):
            raise
        raise ValueError(
            f'{name} is not fetched, because the internet is not reached; '
            f'give {"hf:FOLDER of a copy" if kind == "hf" else OFFLINE}'
        ) from error


def check_known(name: str) -> None:
    """Refuse a model that its library does not have.

    Args:
        name (str): As in :data:`~.choices.KINDS`. Only timm and torchvision
            are asked.

    Raises:
        ValueError: It is unknown; the message has the names near it.
    """
    kind, _, rest = name.partition(':')
    if kind == 'timm':
        import timm

        names = timm.list_models()
        # A name with a colon is of the hub, or of a folder.
        is_known = ':' in rest or timm.is_model(rest)
    elif kind == 'torchvision':
        from torchvision import models

        names = models.list_models()
        is_known = rest.lower() in names
    else:
        return
    if not is_known:
        near = ', '.join(get_close_matches(rest.lower(), names, 5))
        raise ValueError(
            f'{kind} has no model {rest!r}; '
            f'{"near: " + near if near else "no name is near"}'
        )


def picture_reader(
    transform: Callable[[Any], Any],
) -> Callable[[Path], Tensor]:
    """A function of a file: its picture, upright and in colour, transformed.

    Args:
        transform (Callable): Makes a tensor (3, H, W) of a picture of Pillow.
    """
    from PIL import Image, ImageOps

    def read(path: Path) -> Tensor:
        with Image.open(path) as image:
            if image.mode[0] in 'IF':  # Pillow would cut its values off
                raise ValueError(
                    f'its values have 16 bits or are float (mode '
                    f'{image.mode}); save it with 8 bits'
                )
            return transform(ImageOps.exif_transpose(image).convert('RGB'))

    return read


def _timm(name: str, pretrained: bool) -> NamedModel:
    import timm.data

    model = timm.create_model(name, pretrained=pretrained)
    config = timm.data.resolve_model_data_config(model)
    transform: Any = timm.data.create_transform(**config)
    return NamedModel(model, transform)


def _torchvision(name: str, pretrained: bool) -> NamedModel:
    from torchvision import models

    weights: Any = models.get_model_weights(name).DEFAULT
    options = dict(weights=weights if pretrained else None)
    if (
        not pretrained
        and 'weights_backbone'
        in signature(models.get_model_builder(name)).parameters
    ):
        options['weights_backbone'] = None  # fetched by default
    return NamedModel(models.get_model(name, **options), weights.transforms())


def _transformers(name: str, pretrained: bool, labels: bool) -> NamedModel:
    """The base model or, for scores, the class that its config names."""
    import transformers
    from transformers import AutoConfig, AutoImageProcessor, AutoModel

    from mmstepnet.integrations.transformers import holds_ours, load_folder

    config: Any = AutoConfig.from_pretrained(name)
    kind: Any = AutoModel
    build = AutoModel.from_config
    if labels:
        class_name = (config.architectures or [''])[0]
        if not hasattr(transformers, class_name):
            raise ValueError(
                f'hf:{name} has no scores of classes, which --labels needs: '
                f'its config names {class_name!r}, which transformers lacks'
            )
        kind = build = getattr(transformers, class_name)
    model: Any = (
        kind.from_pretrained(name)
        if pretrained or Path(name).is_dir()
        else build(config)
    ).float()  # pictures are in float32, whatever the file is in
    if Path(name).is_dir() and holds_ours(name):
        load_folder(model, name)
    if model.main_input_name != 'pixel_values':
        raise ValueError(
            f'hf:{name} takes no pictures; give FILE.py:FUNCTION '
            f'that returns the model and its batches'
        )
    processor = AutoImageProcessor.from_pretrained(name)
    # The blocks keep the names that they have in the base model alone.
    base = model.base_model_prefix
    inside = labels and isinstance(
        getattr(model, base, None), transformers.PreTrainedModel
    )
    return NamedModel(
        model,
        lambda image: processor(images=image, return_tensors='pt')[
            'pixel_values'
        ][0],
        part=base if inside else '',
        runs_whole=labels,
        classes=_numbers_of_classes(config),
    )


def _numbers_of_classes(config: Any) -> dict[str, int]:
    """Number of each class by its name, as a config of transformers has it.

    Either of its two tables may be missing, or made up by transformers.

    Raises:
        ValueError: They disagree.
    """
    numbers = {name: int(k) for name, k in (config.label2id or {}).items()}
    names = {int(k): name for k, name in (config.id2label or {}).items()}
    numbers_by_names = {name: k for k, name in names.items()}
    if _are_made_up(numbers_by_names):
        return numbers
    if _are_made_up(numbers):
        return numbers_by_names
    for name, k in numbers.items():
        if names.get(k) != name:
            raise ValueError(
                f'the config of {config.name_or_path} has {name!r} as '
                f'class {k} in label2id, and {names.get(k)!r} in '
                f'id2label; correct one of them'
            )
    return numbers


def _are_made_up(numbers: dict[str, int]) -> bool:
    """Whether names of classes say no more than their numbers."""
    return all(name == f'LABEL_{k}' for name, k in numbers.items())


def _openmmlab(name: str, pretrained: bool) -> NamedModel:
    from mmengine.config import Config
    from mmengine.dataset import Compose
    from mmengine.registry import MODELS, init_default_scope

    from mmstepnet.jobs.checkpoint import read_checkpoint

    config = Config.fromfile(name)
    init_default_scope(config.get('default_scope', 'mmengine'))
    if config.get('data_preprocessor'):  # as a runner hands it on
        config.model.setdefault('data_preprocessor', config.data_preprocessor)
    model = MODELS.build(config.model)
    if pretrained:
        model.init_weights()
    # Only a classifier is run to its end: others have heads that decode.
    classifies = any(
        kind.__name__ == 'BaseClassifier' for kind in type(model).__mro__
    )
    # Of labels nothing is needed.
    steps = [
        step
        for step in config.test_dataloader.dataset.pipeline
        if 'LoadAnnotations' not in step['type']
    ]
    pipeline = Compose(steps)

    def prepare(path: Path) -> Tensor:
        try:
            packed = pipeline(dict(img_path=str(path), img_id=0))
            batch = {key: [value] for key, value in packed.items()}
            return model.data_preprocessor(batch, False)['inputs'][0]
        except KeyError as error:
            if any('Load' in step['type'] for step in steps):
                raise
            raise ValueError(
                f'mm:{name} is a config whose test pipeline reads no files; '
                f'give FILE.py:FUNCTION that returns the model and a '
                f'transform'
            ) from error

    return NamedModel(
        model,
        prepare=prepare,
        part='' if classifies else 'backbone',
        read=lambda path: read_checkpoint(str(path))['state_dict'],
    )


def _from_file(path: Path, function: str) -> NamedModel:
    # As Python runs a file: what lies beside it can be imported.
    sys.path.insert(0, str(path.parent))
    spec: Any = spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    returned: Any = getattr(module, function)()
    feed: Any = None
    model = returned
    if isinstance(returned, tuple):
        model, feed = returned
    if not isinstance(model, nn.Module):
        raise ValueError(
            f'{path}:{function} must return a model, or it and a transform or '
            f'its batches, got {type(model).__name__}'
        )
    if callable(feed):
        transform: Any = feed
        return NamedModel(model, transform)
    return NamedModel(model, batches=feed)
