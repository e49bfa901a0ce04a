"""Training with a compiled backbone."""

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstepnet.registry import HOOKS


@HOOKS.register_module()
class CompiledTrainingHook(Hook):
    """Compile a model's backbone for full batches in training.

    mmengine's ``compile`` compiles whole steps, the optimizer's work among
    them. Evaluation and a last batch of another size stay as they are, so
    that there is one graph to compile.
    """

    def before_train(self, runner: Runner) -> None:
        """Put the compiled forward pass in the place of the backbone's."""
        backbone = runner.model.backbone
        plain = backbone.forward
        compiled = torch.compile(plain, dynamic=False)
        full = runner.train_dataloader.batch_size
        backbone.forward = lambda images: (
            compiled if backbone.training and len(images) == full else plain
        )(images)
