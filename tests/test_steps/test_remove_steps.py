"""What ``remove_steps`` says of the gates that it takes out."""

import warnings

import pytest
import torch

from mmstepnet import insert_steps, remove_steps
from mmstepnet.attentions import ATTENTIONS
from tests.test_steps import own_forward_blocks as blocks
from tests.test_steps.cases import randomise
from tests.test_steps.test_files import gates


def convs(attention, **options):
    model = torch.nn.Sequential(*(blocks.Conv() for _ in range(3)))
    if attention == 'FCA':
        options = dict(map_size=8, reduction=4, **options)
    elif attention in ('SE', 'CBAM', 'SEM', 'OursSharedMLP'):
        options = dict(reduction=4, **options)
    elif attention == 'SGE':
        options = dict(groups=4, **options)
    assert len(insert_steps(model, attention, example=torch.rand(
        1, blocks.C, 8, 8), first_block=True, **options)) == 3
    return model


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_gates_at_their_start_go_silently(attention):
    model = convs(attention)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        remove_steps(model)


@pytest.mark.parametrize('attention', sorted(set(ATTENTIONS) - {'Plain'}))
def test_gates_that_look_at_their_input(attention):
    torch.manual_seed(0)
    model = convs(attention)
    before = {k: t.clone() for k, t in gates(model)[1].state_dict().items()}
    randomise(gates(model)[1])
    assert any(not torch.equal(t, before[k])
               for k, t in gates(model)[1].state_dict().items())
    with pytest.warns(UserWarning, match=r'1 of 3 gates do: \|Δt - 1\| is '
                      'unknown in 1 whose'):
        remove_steps(model)
    assert not gates(model)


def test_constant_gates():
    """The bias of a gate whose slope is 0 says all of it."""
    model = convs('StepNet').bfloat16().train()
    first, second, third = gates(model)
    with torch.no_grad():
        first.ie_bias[3] = 0.5
        second.ie_bias[5] = -0.5
        randomise(third)
    wanted = 1 / (1 + 2.718281828**-0.5) * (1 + 2.718281828) - 1
    with pytest.warns(UserWarning, match='3 of 3') as said:
        remove_steps(model)
    text, = (str(warning.message) for warning in said)
    assert (f'up to {wanted:.2g} in 2 whose Δt is constant and unknown in 1 '
            in text)
