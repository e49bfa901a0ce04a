"""Whether a gate adapts, against gates by hand and blocks with constants."""

import pytest
import torch

import mmstepnet
from mmstepnet.stiffness import measure_gates
from tests.test_stiffness.reference import IMAGES, MAPS, ready, small_resnet
from tests.test_stiffness.test_finding import GATED, branch, build, gate


@pytest.mark.parametrize('key', GATED)
def test_whether_a_gate_adapts(key):
    model, seen = build(GATED[key], maps=True), {}
    with torch.no_grad():
        x = MAPS
        for k, block in enumerate(model):
            seen[str(k)] = gate(block, branch(block, x))[..., 0, 0].double()
            x = block(x)
    found = measure_gates(model.train(), MAPS.split(1), lambda m: m.eval()(
        MAPS).sum())
    one = torch.stack([gates.mean() for gates in seen.values()])
    for name, gates in seen.items():
        assert found.mean[name] == pytest.approx(float(gates.mean()))
        assert found.over_images[name] == pytest.approx(
            float(gates.std(0, correction=0).mean()), rel=1e-4)
        assert found.over_channels[name] == pytest.approx(
            float(gates.mean(0).std(correction=0)), rel=1e-4)
    assert found.over_blocks == pytest.approx(
        float(one.std(correction=0)), rel=1e-4)
    for kind, constants in (
            ('attention', None),
            ('channel mean', [g.mean(0) for g in seen.values()]),
            ('one number', [one.mean()] * 3)):
        x = MAPS
        for k, block in enumerate(model.requires_grad_(False)):
            x = x + branch(block, x) * constants[k].float().view(
                -1, 1, 1) if constants else block(x)
        assert found.results[kind] == pytest.approx(
            float(x.sum()), rel=1e-4)


@pytest.mark.parametrize('attention', ['StepNet', 'SE'])
def test_whether_our_attention_adapts(attention):
    """A gate at its start is a constant; one that was moved is none."""
    model = ready(small_resnet())
    mmstepnet.insert_steps(model, attention)
    for moved in (False, True):
        if moved:
            ready(model)
        with torch.no_grad():
            wanted = float(model(IMAGES).sum())
        found = measure_gates(model, [IMAGES], lambda m: m(IMAGES).sum())
        deviations = [found.over_blocks, *found.over_images.values()]
        assert found.results['attention'] == pytest.approx(wanted, rel=1e-4)
        assert moved == (found.results['one number'] != pytest.approx(
            wanted, rel=1e-4))
        assert all(d > 0 for d in deviations) if moved else not any(deviations)
        assert moved or {*found.mean.values()} == {1.0}
