"""The table of a network's attentions, against what it is counted from."""

import numpy as np
import pytest
import torch
from torchvision.models import resnet18

from mmstepnet import insert_steps, summary
from mmstepnet.stiffness import measure_gates
from tests.small_networks import inputs, network
from tests.utils import perturb_gates, seeded

BATCHES = [seeded(2, 3, 64, 64, seed=k).double() for k in (1, 2)]


def table(capsys, model, *batches):
    """Cells of what is printed, without the head; and the last line."""
    summary(model, *batches)
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ['block', 'attention']
    return [row.split() for row in rows], last


def test_counts(capsys):
    """Six parameters a channel, as in Table 1 of the paper."""
    model = resnet18()
    names = insert_steps(model)
    keys = set(model.state_dict())
    rows, last = table(capsys, model)
    widths = [64, 64, 128, 256, 512]
    for row, name, width in zip(rows, names, widths, strict=True):
        assert row == [name, 'StepNet', f'{width}', f'{6 * width:,}']
    plain = sum(p.numel() for p in resnet18().parameters())
    added = 6 * sum(widths)
    assert last == (
        f'5 steps with {added:,} of the {plain + added:,} parameters of ResNet'
    )
    assert set(model.state_dict()) == keys
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_gates_that_have_not_moved(capsys):
    model = network('maps')
    insert_steps(model, example=inputs('maps'))
    words = 'the gates have hardly moved'
    summary(model, [inputs('maps')])
    assert words in capsys.readouterr().out
    assert measure_gates(model, [inputs('maps')]).hardly_moved
    perturb_gates(model)
    summary(model, [inputs('maps')])
    assert words not in capsys.readouterr().out
    assert not measure_gates(model, [inputs('maps')]).hardly_moved


@pytest.mark.parametrize(
    'build, batches',
    [
        pytest.param(
            lambda: resnet18(num_classes=3).double(), BATCHES, id='ResNet'
        ),
        pytest.param(
            lambda: network('tokens'), [inputs('tokens')], id='tokens'
        ),
        pytest.param(lambda: network('maps'), [inputs('maps')], id='maps'),
    ],
)
@pytest.mark.parametrize(
    'attention',
    [
        pytest.param(dict(attention='StepNet'), id='StepNet'),
        pytest.param(dict(attention='SE', reduction=1), id='SE'),
    ],
)
def test_gates_are_those_of_measure_gates(build, batches, attention, capsys):
    """Which follows the products of a pass, and asks no step."""
    torch.manual_seed(0)
    model = build()
    insert_steps(model, **attention, example=batches[0])
    perturb_gates(model)
    model.train()
    found = measure_gates(model, batches)
    rows, _ = table(capsys, model, batches)
    assert len(rows) == len(found.mean)
    for name, _, _, _, mean, over_images in rows:
        assert float(mean) == pytest.approx(found.mean[name], abs=6e-5)
        assert float(over_images) == pytest.approx(
            found.over_images[name], abs=6e-5
        )
    assert any(float(row[-1]) > 0 for row in rows)
    assert model.training


def test_constants_have_their_value_and_no_deviation(capsys):
    model = network('tokens')
    insert_steps(model, 'LayerScale', example=inputs('tokens'), blocks='0')
    insert_steps(model, 'Plain', example=inputs('tokens'), blocks='1')
    numbers = np.linspace(-1, 2, 8)
    weight = model[0].attn_step.attention.weight
    weight.data.copy_(torch.from_numpy(numbers))
    rows, _ = table(capsys, model, [inputs('tokens')] * 2)
    shown = {row[0]: [float(cell) for cell in row[-2:]] for row in rows}
    assert shown == {
        '0.attn_step': [pytest.approx(numbers.mean()), 0],
        '0.mlp_step': [1, 0],
        '1.attn_step': [1, 0],
        '1.mlp_step': [1, 0],
    }


def test_what_has_no_steps_is_refused():
    with pytest.raises(ValueError, match='ResNet has no steps; call insert'):
        summary(resnet18())
    with pytest.raises(ValueError, match='are there any batches'):
        model = network('maps')
        insert_steps(model, example=inputs('maps'))
        summary(model, [])
