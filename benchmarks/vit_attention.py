"""ViT-B of transformers with metric-attention, beside its ``'sdpa'``.

    python -m benchmarks.vit_attention --clock cpu --threads 1

Time in rounds and memory in fresh processes, as in
:mod:`benchmarks.propagation`; memory is the peak of one step beyond the model
and what it returns. The time scale is that of the model.
"""

import argparse
import statistics

import torch
from transformers import ViTConfig, ViTModel

from mmstepnet.checks import positive_int
from mmstepnet.integrations.transformers_attention import (
    add_metrics,
    register_attentions,
)

from .propagation import MODES, Contestant
from .rounds import (
    Timed,
    add_arguments,
    check_arguments,
    in_fresh_process,
    measure,
    set_threads,
)

ATTENTIONS = 'sdpa', 'l2', 'metric'


class ViT(Contestant):
    """One pass, or a pass and its gradients, of ViT-B."""

    def __init__(self, name: str, args: argparse.Namespace, mode: str):
        Timed.__init__(self, args)
        torch.manual_seed(0)
        register_attentions(eps=None)
        self.train = mode == 'train'
        self.model = ViTModel(ViTConfig(attn_implementation=name))
        if name == 'metric':
            add_metrics(self.model)
        self.model.to(args.device).train(self.train)
        self.inputs = torch.rand(
            args.batch_size, 3, 224, 224, device=args.device)

    def step(self) -> tuple[torch.Tensor, ...]:
        """The output, and in training the gradients."""
        with torch.inference_mode(not self.train):
            out = self.model(self.inputs).last_hidden_state
        if not self.train:
            return (out, )
        used = [p for n, p in self.model.named_parameters()
                if not n.startswith('pooler')]
        return (out, *torch.autograd.grad(out.square().mean(), used))


def memory(name: str, args: argparse.Namespace, mode: str) -> int:
    """Bytes of one step, in this process."""
    set_threads(args)
    vit = ViT(name, args, mode)
    inputs, vit.inputs = vit.inputs, vit.inputs[:1, :, :, :]
    vit.step()  # libraries allocate their own buffers once
    vit.inputs = inputs
    return vit.extra_bytes()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, rounds=5, warmup=1)
    parser.add_argument('--batch-size', type=positive_int, default=4)
    args = parser.parse_args()
    check_arguments(parser, args)
    set_threads(args)
    print('| | attention | time over sdpa | seconds | memory, MB |\n'
          '|---|---|---|---|---|')
    for mode in MODES:
        times = measure({name: ViT(name, args, mode) for name in ATTENTIONS},
                        args)
        for name, row in times.items():
            extra = in_fresh_process(memory, name, args, mode)
            print(f'| {mode} | {name} | {row["ratio"]:.3f} ({row["low"]:.3f}-'
                  f'{row["high"]:.3f}) | '
                  f'{statistics.median(row["seconds"]):.2f} | '
                  f'{extra / 1e6:.0f} |', flush=True)


if __name__ == '__main__':
    main()
