"""Which factors are the attention value, and whether it adapts."""

import pytest
import torch

import mmstepnet
from mmstepnet.stiffness import measure_gates
from tests.test_stiffness.reference import ready, recorded, small_resnet
from tests.test_stiffness.test_finding import MAPS, assert_ratio, build


def gate(block, f):
    return torch.sigmoid(block.c(f.mean((2, 3), keepdim=True)))


def branch(block, x):
    return block.norm(block.a(x))


GATED = {
    'gate': lambda b, x: x + branch(b, x) * gate(b, branch(b, x)),
    'in place': lambda b, x: x + branch(b, x).mul_(gate(b, branch(b, x))),
    'expanded': lambda b, x: x + branch(b, x) * gate(
        b, branch(b, x)).expand_as(x),
    'from the left': lambda b, x: gate(b, branch(b, x)) * branch(b, x) + x,
}


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('key', GATED)
def test_a_gate_computed_from_the_state_is_the_attention_value(key, batch):
    x = MAPS[:batch]
    model = build(GATED[key], maps=True)
    recorder = recorded(model, x)
    assert_ratio(recorder, model, x, branch)
    assert_ratio(recorder, model, x, lambda b, x: GATED['gate'](b, x) - x,
                 'unit')
    with torch.no_grad():
        y = model[0](x)
        step = gate(model[1], branch(model[1], y)).flatten(1).mean(1)
    torch.testing.assert_close(
        recorder.record['step_mean'][:, 0], step, rtol=1e-5, atol=0)
    assert recorder.steps[-1].gate is not None


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('code', [
    lambda b, x: x + branch(b, x) * b.scale,  # a layer scale
    lambda b, x: x + b.a(x) * b.scale[:, :1],  # like stochastic depth
    lambda b, x: x + b.a(x) * torch.sigmoid(b.c(x).mean(1, keepdim=True)),
    lambda b, x: x + b.a(x) * torch.sigmoid(b.c(x)),
])
def test_other_factors_belong_to_the_branch(code, batch):
    x = MAPS[:batch]
    model = build(code, maps=True)
    recorder = recorded(model, x)
    assert_ratio(recorder, model, x, lambda b, x: code(b, x) - x)
    assert (recorder.record['step_mean'] == 1).all()


@pytest.mark.parametrize('key', GATED)
def test_whether_a_gate_adapts(key):
    """Against gates by hand, and blocks with constants in their place."""
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
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        wanted = float(model(images).sum())
    found = measure_gates(model, [images], lambda m: m(images).sum())
    assert set(found.mean.values()) == {1.0} and found.over_blocks == 0
    assert set(found.over_images.values()) == {0.0}
    assert list(found.results.values()) == [pytest.approx(wanted)] * 3
    ready(model)
    found = measure_gates(model, [images], lambda m: m(images).sum())
    assert all(value > 0 for value in found.over_images.values())
    with torch.no_grad():
        wanted = float(model(images).sum())
    assert found.results['attention'] == pytest.approx(wanted, rel=1e-4)
    assert found.results['one number'] != pytest.approx(wanted, rel=1e-4)
