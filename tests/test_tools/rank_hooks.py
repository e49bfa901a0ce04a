"""Hooks of the jobs that test_ranks.py starts, named in their configs."""

import json
import os
import signal

import torch
from mmengine.dist import all_reduce, get_rank, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class GlobalLossHook(Hook):
    """Write the loss of each iteration, the mean over all processes."""

    def __init__(self, path: str):
        self.path, self.losses = path, []

    def after_train_iter(self, runner, batch_idx, data_batch=None,
                         outputs=None):
        loss = outputs['loss'].detach().double().clone()
        all_reduce(loss, 'mean')
        self.losses.append(loss.item())

    def after_train(self, runner):
        if is_main_process():
            weights = torch.cat([p.detach().double().flatten()
                                 for p in runner.model.parameters()])
            with open(self.path, 'w') as file:
                json.dump(dict(losses=self.losses,
                               norm=weights.norm().item()), file)


@HOOKS.register_module()
class DyingRankHook(Hook):
    """Kill one process in the middle of an iteration.

    Args:
        rank (int): Which.
        iteration (int): When.
    """

    def __init__(self, rank: int, iteration: int):
        self.rank, self.iteration = rank, iteration

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if get_rank() == self.rank and runner.iter == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)
