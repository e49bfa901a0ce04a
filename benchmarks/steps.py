"""Time a training step and inference with steps, beside the peers' networks.

    python -m benchmarks.steps --model timm:vit_small_patch16_224

In every round each network takes one step, and a step is compared with that
of the host's plain network in the same round, so that a change of the
machine's load meets all of them. The table gives the median of these ratios
with the quartiles, and the most memory. Any network whose blocks
``insert_steps`` knows may take ResNet-50's place, and then OpenMMLab is not
needed.
"""

import argparse
import itertools
import json
from collections.abc import Callable
from functools import partial

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet import fold, insert_steps, steps
from mmstepnet.checks import positive_int
from mmstepnet.cli.models import build_model

from . import tables, tails
from .rounds import (
    HelpFormatter,
    Timed,
    add_arguments,
    machine,
    measure,
    parse,
)

DTYPES = dict(float32=None, bfloat16=torch.bfloat16, float16=torch.float16)
FORMATS = dict(
    contiguous=torch.contiguous_format, channels_last=torch.channels_last
)


BASELINE = 'mmpretrain ResNet-50'
GATES = 'SE', 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA', 'SGE'


def step_net(attention: str | None = 'StepNet', **kwargs) -> nn.Module:
    """ResNet-50 of ours with an attention."""
    from mmstepnet.models import StepResNet

    cfg = None if attention is None else dict(type=attention)
    return StepResNet(50, attention=cfg, host='mmpretrain', **kwargs)


def peer(name: str, **kwargs) -> nn.Module:
    """A ResNet-50 of MMPretrain's."""
    import mmpretrain.models

    return getattr(mmpretrain.models, name)(50, **kwargs)


NETWORKS: dict[str, Callable] = {
    BASELINE: partial(peer, 'ResNet', norm_eval=False),
    'plain': lambda: step_net(None),
    'StepNet naive': step_net,
    'StepNet': step_net,
    **{name: partial(step_net, name) for name in GATES},
    'IEBN': lambda: step_net(None, norm_cfg=dict(type='mmstepnet.IEBN')),
    'mmpretrain SEResNet-50': partial(peer, 'SEResNet'),
}
INFERENCE: dict[str, Callable] = {
    'plain folded': lambda: fold(step_net(None)),
    'StepNet folded': lambda: fold(step_net()),
}
IN_ANY = 'plain', 'StepNet', 'StepNet naive', 'SE', 'LayerScale'
"""Gates that are put into the network of ``--model``; the first is it."""


class Classifier(nn.Module):
    """The head that all ResNets share."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body
        self.fc = nn.Linear(2048, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.fc(self.body(images)[-1].mean((2, 3)))
        return nn.functional.cross_entropy(logits, labels)


class Whole(nn.Module):
    """A network with a head of its own."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        scores = self.model(images)
        return nn.functional.cross_entropy(scores, labels % scores.shape[1])


def build_any(name: str, gate: str, size: int) -> nn.Module:
    """A network by its name, as ``python -m mmstepnet`` takes it."""
    model = build_model(name).model
    if gate != 'plain':
        example = torch.rand(2, 3, size, size)
        insert_steps(model, gate.split()[0], example=example)
    return Whole(model)


class Contestant(Timed):
    """A network and one step of it.

    Args:
        name (str): Its name in the table; 'naive' in it takes the reference
            path of the residual step.
        build (Callable): Builds the network.
        args (Namespace): The command line.
        mode (str): 'train' or 'inference'.
        memory_format (str): A key of ``FORMATS``.
        dtype (str): A key of ``DTYPES``, float32 or that of autocast.
        compiled (bool): Whether to compile it.
    """

    def __init__(
        self,
        name: str,
        build: Callable,
        args: argparse.Namespace,
        mode: str,
        memory_format: str,
        dtype: str,
        compiled: bool,
    ):
        super().__init__(args)
        torch.manual_seed(0)
        self.fused = 'naive' not in name
        self.train = mode != 'inference'
        self.dtype = DTYPES[dtype]
        model = build()
        # Hosts' train() returns None.
        model.train(self.train)
        model.to(args.device, memory_format=FORMATS[memory_format])
        self.forward = torch.compile(model) if compiled else model
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4
        )
        shape = (args.batch_size, 3, args.size, args.size)
        self.images = torch.randn(shape, device=args.device).contiguous(
            memory_format=FORMATS[memory_format]
        )
        self.labels = torch.randint(
            1000, (args.batch_size,), device=args.device
        )

    def loss(self) -> Tensor:
        """Forward pass."""
        with (
            steps.fused(self.fused),
            torch.autocast(
                self.device, self.dtype, enabled=self.dtype is not None
            ),
        ):
            return self.forward(self.images, self.labels)

    def step(self) -> None:
        """One step of training, or one of inference."""
        if not self.train:
            with torch.inference_mode():
                self.loss()
            return
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def saved_bytes(self) -> int:
        """Bytes of distinct storages that a forward pass saves for backward.

        Parameters are left out: they are there in any case.
        """
        parameters = {
            p.untyped_storage().data_ptr()
            for group in self.optimizer.param_groups
            for p in group['params']
        }
        kept = {}

        def pack(t: Tensor) -> Tensor:
            # Kept alive, so that no address is used twice.
            kept[t.untyped_storage().data_ptr()] = t
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            self.loss()
        return sum(
            t.untyped_storage().nbytes()
            for pointer, t in kept.items()
            if pointer not in parameters
        )


def benchmark(args: argparse.Namespace, mode: str, *setting) -> list[dict]:
    """One table: rows of every network in one setting."""
    if args.model is None:
        known = NETWORKS | (INFERENCE if mode == 'inference' else {})
        builders = {
            name: lambda build=build: Classifier(build())
            for name, build in known.items()
        }
    else:
        builders = {
            gate: partial(build_any, args.model, gate, args.size)
            for gate in IN_ANY
        }
    baseline = next(iter(builders))
    contestants = {
        name: Contestant(name, build, args, mode, *setting)
        for name, build in builders.items()
        if not args.networks or name in (baseline, *args.networks)
    }
    times = measure(contestants, args)
    rows = []
    for name, contestant in contestants.items():
        rows.append(dict(times[name], network=name))
        if contestant.train:
            rows[-1]['saved_bytes'] = contestant.saved_bytes()
    return rows


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=HelpFormatter
    )
    add_arguments(parser, rounds=15, warmup=2)
    parser.add_argument(
        '--model',
        help='such as timm:convnext_tiny or torchvision:swin_t; '
        "None is MMPretrain's ResNet-50",
    )
    parser.add_argument(
        '--batch-size', type=positive_int, default=8, help='images of a step'
    )
    parser.add_argument(
        '--size',
        type=positive_int,
        default=224,
        help='side of the images in pixels',
    )
    parser.add_argument(
        '--modes',
        nargs='+',
        default=['train', 'inference'],
        choices=['tails', 'branches', 'train', 'inference'],
        help="tails are the ends of ResNets' blocks alone, branches those of "
        'others',
    )
    parser.add_argument(
        '--formats',
        nargs='+',
        default=list(FORMATS),
        choices=list(FORMATS),
        help='how maps lie in memory',
    )
    parser.add_argument(
        '--dtypes',
        nargs='+',
        default=['float32'],
        choices=list(DTYPES),
        help='float32, or the dtype of autocast',
    )
    parser.add_argument(
        '--compiled',
        nargs='+',
        type=int,
        default=[0],
        choices=[0, 1],
        help='eager is 0',
    )
    parser.add_argument(
        '--networks',
        nargs='+',
        metavar='NAME',
        choices=list(dict.fromkeys((*NETWORKS, *INFERENCE, *IN_ANY))),
        help='beside the baseline; all by default',
    )
    parser.add_argument('--out', default='benchmark.json', help='JSON file')
    args = parse(parser)
    if 1 in args.compiled:
        # Networks share their code and have graphs of their own.
        torch._dynamo.config.recompile_limit = 10_000
        torch._dynamo.config.accumulated_recompile_limit = 10_000
        torch._dynamo.config.fail_on_recompile_limit_hit = True
    return args


def show(args: argparse.Namespace, result: dict, table: dict) -> None:
    """Print a table, and keep it beside those before it."""
    print(tables.tables(dict(result, tables=[table])))
    result['tables'].append(table)
    with open(args.out, 'w') as file:
        json.dump(result, file, indent=1)


def main() -> None:
    args = parse_args()
    result = dict(
        machine(args), batch_size=args.batch_size, size=args.size, tables=[]
    )
    if 'tails' in args.modes:
        for shape, memory_format, rows in tails.tables(args, FORMATS):
            show(
                args,
                result,
                dict(
                    mode='tail',
                    shape=shape,
                    memory_format=memory_format,
                    rows=rows,
                ),
            )
    if 'branches' in args.modes:
        for shape, rows in tails.branch_tables(args):
            show(
                args,
                result,
                dict(
                    mode='branch',
                    shape=shape,
                    memory_format='contiguous',
                    rows=rows,
                ),
            )
    for mode, memory_format, dtype, compiled in itertools.product(
        [mode for mode in args.modes if mode in ('train', 'inference')],
        args.formats,
        args.dtypes,
        args.compiled,
    ):
        rows = benchmark(args, mode, memory_format, dtype, bool(compiled))
        show(
            args,
            result,
            dict(
                mode=mode,
                memory_format=memory_format,
                dtype=dtype,
                compiled=bool(compiled),
                rows=rows,
            ),
        )


if __name__ == '__main__':
    main()
