from functools import partial
from unittest.mock import Mock

import torch
import torch.nn as nn
from torch._dynamo.testing import CompileCounter

from projects.compiled import CompiledTrainingHook


def test_full_batches_of_training_are_compiled(monkeypatch):
    counter, model, x = CompileCounter(), nn.Module(), torch.randn(8, 3)
    model.backbone = nn.BatchNorm1d(3, eps=1e-9)
    monkeypatch.setattr(
        torch, 'compile', partial(torch.compile, backend=counter)
    )
    CompiledTrainingHook().before_train(
        Mock(model=model, **{'train_dataloader.batch_size': 8})
    )
    torch.testing.assert_close(model.backbone.eval()(x), x)
    model.backbone.train()(x[:5])
    assert not counter.frame_count
    torch.testing.assert_close(
        model.backbone(x), (x - x.mean(0)) / x.std(0, correction=0)
    )
    assert counter.frame_count == 1
