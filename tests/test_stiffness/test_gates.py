"""Which factors are the attention value, and which belong to the branch."""

import pytest
import torch

from tests.test_stiffness.written_blocks import (
    GATED,
    MAPS,
    assert_ratio,
    gate,
    record,
)


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('key', GATED)
def test_a_gate_computed_from_the_state_is_the_attention_value(key, batch):
    x = MAPS[:batch]
    model, recorder = record(GATED[key], x, maps=True)
    record_ = recorder.record
    assert_ratio(recorder, model, x, lambda b, x: b.norm(b.a(x)))
    assert_ratio(recorder, model, x, lambda b, x: GATED['gate'](b, x) - x,
                 'unit')
    with torch.no_grad():
        y = model[0](x)
        b = model[1]
        step = gate(b, b.norm(b.a(y))).flatten(1).mean(1)
    torch.testing.assert_close(
        record_['step_mean'][:, 0], step, rtol=1e-5, atol=0)
    assert recorder.steps[-1].gate is not None


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('code', [
    lambda b, x: x + b.norm(b.a(x)) * b.scale,  # a layer scale
    lambda b, x: x + b.a(x) * torch.sigmoid(b.c(x).mean(1, keepdim=True)),
    lambda b, x: x + b.a(x) * torch.sigmoid(b.c(x)),
])
def test_other_factors_belong_to_the_branch(code, batch):
    x = MAPS[:batch]
    model, recorder = record(code, x, maps=True)
    assert_ratio(recorder, model, x, lambda b, x: code(b, x) - x)
    assert (recorder.record['step_mean'] == 1).all()


def test_one_number_an_image_that_was_learnt_is_no_stochastic_depth():
    """At batch 1 a scale of one number looks like it."""
    model, recorder = record(
        lambda b, x: x + b.a(x) * b.scale[:, :1], MAPS[:1], maps=True)
    assert_ratio(recorder, model, MAPS[:1],
                 lambda b, x: b.a(x) * b.scale[:, :1])
