"""Time metric-attention and its memory, beside PyTorch's dot product.

    python -m benchmarks.propagation --tokens 4096 --modes inference

In every round each contestant takes one step, and a step is compared with
that of PyTorch's ``scaled_dot_product_attention`` on the same tensors in the
same round, so that a change of the machine's load meets all of them. The
table gives the median of these ratios with the quartiles.

Memory is the peak of one step in a fresh process, less what stood there
before (the inputs) and less what the step returns. On a CPU it is the
process's resident set as Linux counts it, which no allocator escapes. It is
given as a share of one N x N matrix a head.
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mmstepnet.checks import positive_int
from mmstepnet.propagation import dot_product_propagation, metric_propagation

from .rounds import (
    HelpFormatter,
    Timed,
    add_arguments,
    machine,
    measure,
    parse,
)

BASELINE = 'PyTorch dot product'
DTYPES = dict(
    float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16
)
MODES = ('inference', 'train')
SETTINGS = ('plain', 'key padding', 'causal')
WARM_UP_TOKENS = 64


def torch_sdpa(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    eps: float,
    mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    return F.scaled_dot_product_attention(a, b, v, mask, is_causal=is_causal)


CONTESTANTS: dict[str, Callable] = {
    BASELINE: torch_sdpa,
    'dot product': dot_product_propagation,
    'metric': metric_propagation,
    'metric N x N': partial(metric_propagation, dense=True),
}


class Contestant(Timed):
    """One step of an attention between its linear layers.

    Tensors are laid out as linear layers leave them, (B, N, H, C/H), and
    seen as (B, H, N, C/H).

    Args:
        name (str): A key of ``CONTESTANTS``.
        args (Namespace): The command line.
        mode (str): 'inference', or 'train': forward and backward.
        setting (str): One of ``SETTINGS``.
        tokens (int): Number of tokens N.
    """

    def __init__(
        self,
        name: str,
        args: argparse.Namespace,
        mode: str,
        setting: str,
        tokens: int,
    ):
        super().__init__(args)
        torch.manual_seed(0)
        self.propagate = CONTESTANTS[name]
        self.train = mode == 'train'
        shape = (args.batch_size, tokens, args.heads, args.head_dims)
        self.grad, *self.inputs = (
            torch.randn(
                shape, device=args.device, dtype=DTYPES[args.dtype]
            ).transpose(1, 2)
            for _ in range(4)
        )
        for tensor in self.inputs:
            tensor.requires_grad_(self.train)
        self.eps = args.head_dims**0.5
        self.is_causal = setting == 'causal'
        self.mask = None
        if setting == 'key padding':
            # The last quarter of the tokens is padding.
            kept = torch.arange(tokens, device=args.device) < 0.75 * tokens
            self.mask = kept.expand(args.batch_size, 1, 1, tokens)

    def step(self) -> tuple[Tensor, ...]:
        """The output, and in training the gradients."""
        with torch.inference_mode(not self.train):
            out = self.propagate(
                *self.inputs, self.eps, self.mask, is_causal=self.is_causal
            )
        if not self.train:
            return (out,)
        return (out, *torch.autograd.grad(out, self.inputs, self.grad))

    def extra_bytes(self) -> int:
        """Peak memory of a step beyond inputs and outputs."""
        before = self._reset_peak()
        returned = sum(t.numel() * t.element_size() for t in self.step())
        return self._peak() - before - returned

    def _reset_peak(self) -> int:
        if self.device == 'cuda':
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        Path('/proc/self/clear_refs').write_text('5')
        return resident('VmRSS')

    def _peak(self) -> int:
        if self.device == 'cuda':
            return torch.cuda.max_memory_allocated()
        return resident('VmHWM')


def resident(key: str) -> int:
    """Resident bytes of this process: VmRSS now, VmHWM at the peak."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(key + ':'):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f'/proc/self/status does not give {key}')


def extra_bytes(name: str, args: argparse.Namespace, *setting: str) -> int:
    """Memory of one step, for a fresh process."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    # Libraries allocate their own buffers once.
    Contestant(name, args, *setting, WARM_UP_TOKENS).step()
    return Contestant(name, args, *setting, args.tokens).extra_bytes()


def benchmark(args: argparse.Namespace, mode: str, setting: str) -> list[dict]:
    """One table: a row for each contestant."""
    names = list(dict.fromkeys([BASELINE, *args.contestants]))
    times = measure(
        {
            name: Contestant(name, args, mode, setting, args.tokens)
            for name in names
        },
        args,
    )
    matrices = (
        args.batch_size
        * args.heads
        * args.tokens**2
        * DTYPES[args.dtype].itemsize
    )
    rows = []
    for name in names:
        # A new process, which is no fork of this.
        with multiprocessing.get_context('spawn').Pool(1) as pool:
            extra = pool.apply(extra_bytes, (name, args, mode, setting))
        rows.append(
            dict(
                times[name],
                contestant=name,
                extra_bytes=extra,
                share_of_matrices=extra / matrices,
            )
        )
    return rows


def print_table(title: str, rows: list[dict]) -> None:
    print(
        f'\n{title}\n{"contestant":22}{"ratio":>8}{"quartiles":>16}'
        f'{"seconds":>10}{"MB":>8}{"of N x N":>10}'
    )
    for row in rows:
        spread = f'{row["low"]:.3f}-{row["high"]:.3f}'
        print(
            f'{row["contestant"]:22}{row["ratio"]:8.3f}{spread:>16}'
            f'{statistics.median(row["seconds"]):10.3f}'
            f'{row["extra_bytes"] / 1e6:8.0f}'
            f'{row["share_of_matrices"]:10.2%}'
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=HelpFormatter
    )
    add_arguments(parser, rounds=5, warmup=1)
    for name, count, what in (
        ('--batch-size', 1, 'sequences'),
        ('--tokens', 16384, 'tokens of a sequence, N'),
        ('--heads', 8, 'heads'),
        ('--head-dims', 64, 'numbers of a head'),
    ):
        parser.add_argument(name, type=positive_int, default=count, help=what)
    parser.add_argument(
        '--dtype',
        default='float32',
        choices=list(DTYPES),
        help='of all tensors',
    )
    parser.add_argument(
        '--modes',
        nargs='+',
        default=list(MODES),
        choices=MODES,
        help='what is measured',
    )
    parser.add_argument(
        '--settings',
        nargs='+',
        default=list(SETTINGS),
        choices=SETTINGS,
        help='what masks the tokens',
    )
    parser.add_argument(
        '--contestants',
        nargs='+',
        default=['metric'],
        choices=list(CONTESTANTS),
        help='beside the baseline',
    )
    parser.add_argument(
        '--out', default='propagation_benchmark.json', help='JSON file'
    )
    return parse(parser)


def main() -> None:
    args = parse_args()
    result = {**vars(args), **machine(args), 'tables': []}
    for setting in args.settings:
        for mode in args.modes:
            rows = benchmark(args, mode, setting)
            print_table(f'{mode}, {setting}', rows)
            result['tables'].append(
                dict(mode=mode, setting=setting, rows=rows)
            )
            with open(args.out, 'w') as file:
                json.dump(result, file, indent=1)


if __name__ == '__main__':
    main()
