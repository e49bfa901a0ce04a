"""Gates of a trained network are replaced by their means."""

import numpy as np
import pytest
import torch

import mmstepnet
from mmstepnet.attentions import Attention
from projects.ladder import means
from projects.ladder.networks import CIFARResNet
from tests.utils import perturb, seeded


def test_norms_are_estimated_again_for_a_while():
    """By the mean over all batches; then they are as before."""
    model = perturb(torch.nn.Sequential(torch.nn.BatchNorm2d(3))).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    batches = [seeded(4, 3, 5, 5, seed=k) for k in range(3)]
    with torch.no_grad(), means.norms_estimated_again(model, batches):
        found = np.mean([x.numpy().mean((0, 2, 3)) for x in batches], 0)
        variances = np.mean(
            [x.numpy().var((0, 2, 3)) * 100 / 99 for x in batches], 0
        )
        np.testing.assert_allclose(model[0].running_mean, found, atol=1e-6)
        np.testing.assert_allclose(model[0].running_var, variances, 1e-5)
        assert not model[0].training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert model[0].momentum == 0.1


def test_replaced_gates_by_hooks_of_one_s_own():
    """Each gate gives its mean over pictures, channel by channel."""
    model = CIFARResNet(14)
    mmstepnet.insert_steps(model, example=seeded(1, 3, 8, 8))
    perturb(model).eval()
    for gates in mmstepnet.step_parameters(model)[1:]:
        for p in gates['params']:
            p.data *= 10  # so that they vary over pictures
    tested = [seeded(20, 3, 8, 8, seed=k) for k in range(3)]
    trained = [seeded(20, 3, 8, 8, seed=k) for k in (7, 8)]
    with torch.no_grad():
        x = torch.cat(tested)
        labels = model(x).argmax(1)
        labels[::3] = (labels[::3] + 1) % 10
        found = means.replace_gates(model, tested, labels, trained)

        def accuracy():
            return 100 * float((model(x).argmax(1) == labels).double().mean())

        expected = {'attention': accuracy()}
        gates = [m for m in model.modules() if isinstance(m, Attention)]
        values = {gate: [] for gate in gates}
        keepers = [
            gate.register_forward_hook(
                lambda gate, _, step: values[gate].append(step)
            )
            for gate in gates
        ]
        model(x)
        for gate, keeper in zip(gates, keepers):
            keeper.remove()
            gate.register_forward_hook(
                lambda gate, _, step: (
                    values[gate][0].mean(0, keepdim=True).expand_as(step)
                )
            )
        expected['channel mean'] = accuracy()
        for norm in model.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.train().momentum = None
                norm.reset_running_stats()
        for batch in trained:
            model(batch)
        model.eval()
        expected['channel mean, BN again'] = accuracy()
    assert found['attention'] == pytest.approx(100 * 40 / 60)
    assert len(set(expected.values())) == 3
    for name, value in expected.items():
        assert found[name] == pytest.approx(value)
