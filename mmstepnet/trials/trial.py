"""Training of rungs in one frozen network."""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from mmstepnet.steps import insert_steps
from mmstepnet.steps.calibration import calibrate
from mmstepnet.steps.fold import fold

from .pictures import augment
from .rungs import Rung, has_gates, put_in, scores_of


class Recipe(NamedTuple):
    """How something is trained."""

    rate: float = 1e-3
    """At the start."""
    epochs: int = 1
    seed: int = 0
    """Decides order and shifts of the pictures, and where gates start."""


HEAD = Recipe(rate=0.1, epochs=10)
"""How a head is trained first, on what the network gives it as it is."""

HEAD_RATE = 10.0
"""A head of D features learns at a rate that is so much larger, over D: each
step moves a score by the sum of D changes."""

CALIBRATION = 50
"""Batches at most that gates with a BN are calibrated on."""

TIMED = 8
"""Pictures whose inference is timed."""


class Trial:
    """One frozen network and its pictures, for all rungs.

    Args:
        model (nn.Module): The network, which is left as it is. A copy gets a
            new head, of zeros, where the pictures have another number of
            classes, or where its own is worse than such a head.
        images (Tensor): All pictures, as it takes them, (N, C, H, W).
        labels (Tensor): Numbers of their classes, (N,).
        batch_size (int): Pictures at once, two at least, and three where one
            would be left alone: of one picture a BN has no variance.

    Attributes:
        head (str): Name of its head.
        blocks (list[str]): Names of the blocks in which rungs stand.
        features (Tensor): What the head is given of the pictures, (N, D).
        plain_seconds (float | None): Of the network's inference, once a rung
            was measured.

    Raises:
        ValueError: It is in half precision, has no head, has no block that
            takes steps, or gives scores that are no numbers.
    """

    def __init__(
        self, model: nn.Module, images: Tensor, labels: Tensor, batch_size: int
    ):
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.plain_seconds: float | None = None
        for name, p in model.named_parameters():
            if p.dtype in (torch.float16, torch.bfloat16):
                raise ValueError(
                    f'{name} is in {p.dtype}, in which small steps of a '
                    f'training are lost; give model.float()'
                )
        self.model = deepcopy(model)
        self.model.train(False)  # eval() of some hosts returns nothing
        self.model.requires_grad_(False)
        self.example = images[:1].to(next(model.parameters()))
        self.head = self._find_head()
        self.blocks = insert_steps(
            deepcopy(self.model), 'StepNet', example=self.example
        )
        head: Any = self.model.get_submodule(self.head)
        features: list[Tensor] = []
        handle = head.register_forward_pre_hook(
            # A copy: a view would keep all tokens of a ViT in memory.
            lambda head, inputs: features.append(
                inputs[0].to('cpu', copy=True)
            )
        )
        scores = self.answer(self.model, images)
        handle.remove()
        strange = int((~scores.isfinite()).any(1).sum())
        if strange:
            raise ValueError(
                f'for {strange} of {len(images)} pictures the network gives '
                f'scores that are no numbers; check its weights and the '
                f'transform'
            )
        self.features = torch.cat(features)
        classes = int(labels.max()) + 1
        # As many classes may be others: of these the head knows nothing.
        if scores.shape[-1] != classes or F.cross_entropy(
            scores, labels
        ) > math.log(classes):
            head.out_features = classes
            for name, p in [*head.named_parameters()]:
                zeros = p.new_zeros(classes, *p.shape[1:])
                setattr(head, name, nn.Parameter(zeros))

    def _find_head(self) -> str:
        """Name of the linear layer that alone gives the scores.

        Without it they are equal. Where two layers share them, as in a
        distilled network, they are not.
        """
        scores = self.answer(self.model, self.example).shape[-1]
        for name, module in reversed([*self.model.named_modules()]):
            if getattr(module, 'out_features', None) != scores:
                continue
            handle = module.register_forward_hook(
                lambda module, inputs, out: torch.zeros_like(out)
            )
            others = self.answer(self.model, self.example)
            handle.remove()
            if (others == others[:, :1]).all():
                return name
        raise ValueError(
            f'{type(self.model).__name__} has no head: none of its linear '
            f'layers alone gives scores of classes; give a classifier that '
            f'ends in one'
        )

    @torch.no_grad()
    def answer(self, model: nn.Module, images: Tensor) -> Tensor:
        """Scores of pictures, on the CPU, (N, K)."""
        parts = images.split(self.batch_size)
        return torch.cat([scores_of(model, part).cpu() for part in parts])

    def build(
        self, rung: Rung, places: Tensor, seed: int
    ) -> tuple[nn.Module, nn.Module, list[nn.Parameter]]:
        """Put a rung into a copy of the network.

        Its head is trained first, alone: all rungs that are trained on the
        same pictures start from the same head.

        Args:
            rung (Rung): The rung.
            places (Tensor): Pictures that it is to be trained on. Gates that
                have a BN are calibrated on them.
            seed (int): Decides where gates start.

        Returns:
            tuple: The network, in evaluation mode but for what was put in;
            its head; and what is trained beside that.
        """
        model = deepcopy(self.model)
        head = model.get_submodule(self.head)
        self._train(head, head, [], self.features, places, HEAD)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parameters = put_in(model, rung, self.blocks, self.example)
            order = places[torch.randperm(len(places))]
        parts = order.split(self.batch_size)[:CALIBRATION]
        batches = (self.images[part] for part in parts)
        calibrate(model, batches, forward=scores_of)
        return model, head, parameters

    def train(self, rung: Rung, places: Tensor, recipe: Recipe) -> nn.Module:
        """Train a rung on some pictures.

        Returns:
            nn.Module: The network, in evaluation mode.
        """
        built = self.build(rung, places, recipe.seed)
        self._train(*built, self.images, places, recipe)
        model = built[0]
        model.train(False)
        return model

    def _train(
        self,
        model: nn.Module,
        head: nn.Module,
        parameters: list[nn.Parameter],
        inputs: Tensor,
        places: Tensor,
        recipe: Recipe,
    ) -> None:
        """AdamW without decay, its rate along half a cosine.

        Pictures are augmented, features are not.
        """
        of_head = [*head.parameters()]
        for p in parameters + of_head:
            p.requires_grad_()
        rate = HEAD_RATE * recipe.rate / self.features.shape[1]
        optimizer = AdamW(of_head, lr=rate, weight_decay=0.0)
        optimizer.add_param_group(dict(params=parameters, lr=recipe.rate))
        count = len(places)
        steps = max(1, min(math.ceil(count / self.batch_size), count // 2))
        schedule = CosineAnnealingLR(optimizer, recipe.epochs * steps)
        generator = Generator().manual_seed(recipe.seed)
        for _ in range(recipe.epochs):
            order = places[torch.randperm(count, generator=generator)]
            # Parts are of almost one size, and none is of one picture.
            for part in order.tensor_split(steps):
                batch = inputs[part].float()
                if inputs is self.images:
                    batch = augment(batch, generator)
                scores = scores_of(model, batch)
                labels = self.labels[part].to(scores.device)
                optimizer.zero_grad()
                F.cross_entropy(scores, labels).backward()
                optimizer.step()
                schedule.step()

    def measure(self, rung: Rung) -> dict[str, float]:
        """What a rung costs.

        Returns:
            dict: Seconds that it takes before a training, and of a picture in
            training and in inference, where what can be folded is folded; and
            how many numbers are trained.
        """
        places = torch.arange(len(self.images))
        start = time.perf_counter()
        model, head, parameters = self.build(rung, places, 0)
        building = time.perf_counter() - start
        batch = torch.arange(self.batch_size) % len(self.images)
        folded = fold(model, self.example) if has_gates(model) else model

        def step() -> None:
            self._train(model, head, parameters, self.images, batch, Recipe())
            next(head.parameters()).cpu()  # waits for a GPU

        def infer(network: nn.Module) -> Callable[[], object]:
            return lambda: self.answer(network, self.images[:TIMED])

        # Rungs are measured one after the other, and other programs come and
        # go: each is timed in turns with the network as it is.
        plain, own = _seconds([infer(self.model), infer(folded)], 5)
        if self.plain_seconds is None:
            self.plain_seconds = plain
        return dict(
            building=building,
            training=_seconds([step], 2)[0] / len(batch),
            inference=self.plain_seconds * own / plain / TIMED,
            trained=sum(
                p.numel() for p in model.parameters() if p.requires_grad
            ),
        )


def _seconds(calls: Sequence[Callable[[], object]], times: int) -> list[float]:
    """Seconds of the fastest run of each call, taken in turns."""
    fastest = [math.inf] * len(calls)
    for _ in range(times):
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call()
            fastest[k] = min(fastest[k], time.perf_counter() - start)
    return fastest
