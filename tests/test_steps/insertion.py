"""What the tests of :func:`insert_steps` ask of a model of any library."""

import copy
import pickle

import pytest
import torch
import torch._dynamo
import torch.nn as nn
from torch import Tensor

from mmstepnet import ResidualStep, insert_steps, remove_steps
from mmstepnet.stiffness import TrajectoryRecorder
from tests.utils import outputs, perturb, perturb_gates, rounding, steps_of

BOUND = 1e-10
COMPILED = set()
"""Classes that this process has compiled."""


def outputs_in_training(
    model: nn.Module, inputs: dict | Tensor
) -> list[Tensor]:
    """Outputs of a copy in training mode."""
    model = copy.deepcopy(model)
    model.train()  # that of some hosts returns nothing
    return outputs(model, inputs)


def doubled(inputs: dict | Tensor) -> dict | Tensor:
    """Inputs in float64, but for integers."""
    if isinstance(inputs, dict):
        return {key: doubled(value) for key, value in inputs.items()}
    return inputs.double() if inputs.is_floating_point() else inputs


def difference(outs: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest relative difference, of two ways through one network.

    In float64 rounding stays far below :data:`BOUND` on every CPU.
    """
    assert len(outs) == len(wanted) > 0
    for w in wanted:
        assert torch.isfinite(w).all() and w.abs().max() > 0
    return max(
        float((o - w).detach().abs().max() / w.detach().abs().max())
        for o, w in zip(outs, wanted)
    )


def check_insertion(
    model: nn.Module, inputs: dict | Tensor, **options
) -> list[str]:
    """Put steps into a model, and check all that can be without a process.

    The model is in float64 afterwards.
    """
    perturb(model)
    keys = set(model.state_dict())
    parts = {name: type(m) for name, m in model.named_modules()}
    plain = copy.deepcopy(model)
    plain.eval()  # that of some hosts returns nothing
    names = insert_steps(model, 'StepNet', **options)
    model.eval()
    singles = outputs(model, inputs), outputs(plain, inputs)
    plain.double(), model.double()
    inputs = doubled(inputs)

    # Outputs, in both modes: stochastic depth draws the same numbers.
    before = outputs(plain, inputs)
    assert difference(outputs(model, inputs), before) <= BOUND
    assert (
        difference(
            outputs_in_training(model, inputs),
            outputs_in_training(plain, inputs),
        )
        <= BOUND
    )
    ours, theirs = (list(map(rounding, outs, before)) for outs in singles)
    assert all(ours[k] <= 2 * theirs[k] for k in range(len(ours)))

    # Keys: those of the attentions come on top.
    new = set(model.state_dict()) - keys
    assert keys < set(model.state_dict())
    assert all('step.attention.' in key for key in new)

    # Every gate gets gradient, and all of its parameters once it has moved.
    twin = copy.deepcopy(model)
    sum(o.square().mean() for o in outputs(twin, inputs)).backward()
    for name, step in steps_of(twin).items():
        assert any(
            p.grad is not None and p.grad.abs().max() > 0
            for p in step.attention.parameters()
        ), name
    perturb_gates(model)
    moved = outputs(model, inputs)
    assert difference(moved, before) > 1e-4
    sum(o.square().mean() for o in moved).backward()
    for name, step in steps_of(model).items():
        for p in step.attention.parameters():
            assert p.grad is not None and p.grad.abs().max() > 0, name
    model.zero_grad()

    # Copies, and a state dict from one to another.
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert difference(outputs(twin, inputs), moved) == 0
    nn.init.ones_(next(twin.parameters()))
    twin.load_state_dict(model.state_dict(), strict=True)
    assert difference(outputs(twin, inputs), moved) == 0

    # Out again: the model is the one it was.
    assert remove_steps(twin) == names
    assert difference(outputs(twin, inputs), before) == 0
    assert set(twin.state_dict()) == keys
    assert {name: type(m) for name, m in twin.named_modules()} == parts
    assert not any(
        'BranchStep' in str(hook)
        for m in twin.modules()
        for hook in (
            *m._forward_hooks.values(),
            *m._forward_pre_hooks.values(),
        )
    )
    return names


def check_recorder(
    model: nn.Module,
    inputs: dict | Tensor,
    example: dict | Tensor | None = None,
) -> None:
    """Stiffness of the network as it is and with plain steps, in float64."""
    model.eval()
    with torch.no_grad():
        wanted = outputs(model, inputs)
        parts = [type(m) for m in model.modules()]
        with TrajectoryRecorder(model) as plain:
            outs = outputs(model, inputs)
        assert difference(outs, wanted) == 0
        assert [type(m) for m in model.modules()] == parts
        insert_steps(model, 'Plain', first_block=True, example=example)
        with TrajectoryRecorder(model) as stepped:
            outputs(model, inputs)
    assert len(plain.blocks) == len(stepped.blocks) > 0
    assert plain.excluded == stepped.excluded
    # Recorded in float32.
    torch.testing.assert_close(plain.nsi, stepped.nsi, rtol=1e-6, atol=0)


def check_compiles(model: nn.Module, inputs: dict | Tensor) -> None:
    """Compile each new kind of blocks alone, without a graph break."""
    blocks = {
        type(m): name
        for name, m in model.named_modules()
        if type(m) not in COMPILED
        and any(isinstance(c, ResidualStep) for c in m.children())
    }
    COMPILED.update(blocks)

    def run(model, name):
        torch._dynamo.reset()
        model = copy.deepcopy(model)
        model.get_submodule(name).compile(fullgraph=True, backend='eager')
        with torch.no_grad():
            return outputs(model, inputs)

    wanted = outputs(model, inputs)
    for name in blocks.values():
        try:
            assert difference(run(model, name), wanted) <= BOUND
        except torch._dynamo.exc.Unsupported:
            host = copy.deepcopy(model)
            remove_steps(host)
            # Its own modules break the graph, and nothing else does.
            with pytest.raises(torch._dynamo.exc.Unsupported):
                run(host, name)
