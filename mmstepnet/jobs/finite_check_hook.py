"""Training that stops where its numbers are no longer finite."""

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstepnet.registry import HOOKS

from .checkpoint import not_finite

ADVICE = ('lower the learning rate or lengthen its warm-up, clip the '
          'gradients (optim_wrapper.clip_grad.max_norm=1), train in float32 '
          'or bfloat16 instead of float16, or look for damaged samples')


@HOOKS.register_module()
class FiniteCheckHook(Hook):
    """End a job whose loss or weights are NaN or infinite.

    mmengine goes on with them to the last epoch, and its checkpoints take the
    place of good ones. Every loss is looked at, which costs nothing: mmengine
    has brought it to the CPU for its log already. Weights are looked at when
    they are to be saved; what was saved before stays. ``tools/train.py``
    adds the hook.

    Loss scaling skips steps whose gradients overflow in float16. A loss that
    overflows is another matter: no scale helps it, and the running
    statistics of batch norms are lost by then.
    """

    # Behind the scalars' way to the log, before the checkpoints.
    priority = 'ABOVE_NORMAL'

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: dict | None = None,
                         outputs: dict | None = None) -> None:
        """Look at the loss.

        Raises:
            FloatingPointError: It is not finite.
        """
        loss = (outputs or {}).get('loss')
        if loss is None or torch.as_tensor(loss).isfinite().all():
            return
        parts = ', '.join(
            f'{name} {torch.as_tensor(value).float().mean().item():g}'
            for name, value in outputs.items() if 'loss' in name)
        rates = ', '.join(
            f'{rate:g}' for rates in runner.optim_wrapper.get_lr().values()
            for rate in sorted(set(rates)))
        raise FloatingPointError(
            f'training has diverged: {parts} at iteration {runner.iter + 1} '
            f'of epoch {runner.epoch + 1}, learning rate {rates}; no '
            f'checkpoint was touched. Go back to one and {ADVICE}')

    def before_save_checkpoint(self, runner: Runner,
                               checkpoint: dict) -> None:
        """Look at the weights.

        Raises:
            FloatingPointError: Some are not finite.
        """
        broken = not_finite(checkpoint['state_dict'], runner.model)
        if broken:
            raise FloatingPointError(
                'training has diverged, the checkpoint was not written: at '
                f'iteration {runner.iter + 1} {len(broken)} tensors are not '
                f'finite ({", ".join(broken[:3])}, ...). Go back to an '
                f'earlier one and {ADVICE}')
