"""What a checkpoint says of its attentions, and what loaders make of it."""

import copy
import itertools
import json
import warnings

import pytest
import torch
import torch.nn as nn
import torchvision

from mmstepnet import insert_steps, remove_steps
from mmstepnet.attentions import (
    ATTENTIONS,
    IEBN,
    FoldedStepNet,
    Plain,
    StepNet,
    build_attention,
)
from mmstepnet.attentions.record import KEY
from mmstepnet.steps import ResidualStep, fused
from tests.utils import perturb, seeded

SINGLE = ('x', 'x_next', 'difference')
NAMES = sorted(set(ATTENTIONS) - {'Plain'})
SETTINGS = [dict(type=name, init_step=step)
            for name in NAMES for step in (None, 1.0)]
SETTINGS += [dict(type='StepNet', inputs=inputs) for inputs in SINGLE]


def step(cfg):
    """A residual step of 16 channels."""
    return ResidualStep(build_attention(cfg, 16, map_size=7)).eval()


def value(module):
    with torch.no_grad(), fused(False):
        return module(*seeded(2, 2, 16, 7, 7))


def test_no_pair_of_settings_loads_and_computes_something_else():
    """It refuses, or computes what was saved."""
    steps = [perturb(step(cfg)) for cfg in SETTINGS]
    loaded = refused = taken_over = 0
    for (i, source), (j, _) in itertools.permutations(enumerate(steps), 2):
        target = step(SETTINGS[j])
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter('always')
                target.load_state_dict(source.state_dict(), strict=True)
        except (ValueError, RuntimeError):
            refused += 1
            continue
        loaded += 1
        taken_over += any('takes over' in str(w.message) for w in said)
        assert torch.equal(value(target), value(source)), (
            SETTINGS[i], SETTINGS[j])
        assert target.attention.init_step == source.attention.init_step
    assert loaded + refused == 812
    assert loaded == taken_over == 2 * len(NAMES)


@pytest.mark.parametrize('cfg', SETTINGS, ids=str)
def test_files_without_records_load_as_before(cfg):
    source, target = perturb(step(cfg)), step(cfg)
    weights = {k: v for k, v in source.state_dict().items()
               if not k.endswith(KEY)}
    assert len(weights) == len(list(source.parameters())) + len(
        [n for n, _ in source.named_buffers() if 'basis' not in n])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        found = target.load_state_dict(weights, strict=True)
    assert not found.missing_keys
    assert torch.equal(value(target), value(source))


@pytest.mark.parametrize('saved, built, message', [
    (dict(type='SE'), dict(type='FCA'),
     r'attention._extra_state: the weights are those of SE\(reduction=16\), '
     r'the model has FCA\(map_size=7, reduction=16\)'),
    (dict(type='StepNet', inputs='x'), dict(type='StepNet', inputs='x_next'),
     r"StepNet\(inputs='x'\), the model has StepNet\(inputs='x_next'\)"),
    (dict(type='FCA', map_size=14), dict(type='FCA', map_size=7),
     'map_size=14'),
])
@pytest.mark.parametrize('strict', [True, False])
def test_errors_name_both(saved, built, message, strict):
    with pytest.raises(ValueError, match=message):
        step(built).load_state_dict(step(saved).state_dict(), strict=strict)


def test_a_subclass_is_what_it_extends():
    class Mine(StepNet):
        pass

    Mine(16).load_state_dict(StepNet(16).state_dict(), strict=True)


def test_another_init_step_is_told_and_kept_by_initialisation():
    source, target = perturb(StepNet(16, init_step=0.5)), StepNet(16)
    with pytest.warns(UserWarning, match='init_step=None and takes over '
                      'init_step=0.5'):
        target.load_state_dict(source.state_dict())
    assert type(target.scale) is float and target.scale == source.scale
    target.init_weights()
    step = target(torch.ones(2, 16), torch.ones(2, 16))
    assert (step == 0.5).all()


@pytest.mark.parametrize('name', ['StepNet', 'SE'])
def test_plain_weights_in_gates_that_start_as_the_paper_warn(name):
    plain = torchvision.models.resnet18()
    target = torchvision.models.resnet18()
    insert_steps(target, name, init_step=None)
    with pytest.warns(UserWarning, match=f'{name} finds no weights of its '
                      'own.*init_step=1.0'):
        target.load_state_dict(plain.state_dict(), strict=False)
    remove_steps(target)
    insert_steps(target, name)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        target.load_state_dict(plain.state_dict(), strict=False)


def test_iebn_and_the_folded_step():
    source, target = perturb(IEBN(16, init_step=1.0)).eval(), IEBN(16).eval()
    with pytest.warns(UserWarning, match='IEBN .* takes over init_step=1.0'):
        target.load_state_dict(source.state_dict())
    x = torch.randn(2, 16, 3, 3)
    assert torch.equal(target(x), source(x))
    plain = perturb(nn.BatchNorm2d(16))
    found = target.load_state_dict(plain.state_dict(), strict=False)
    assert sorted(found.missing_keys) == ['ie_bias', 'ie_weight']
    folded = [FoldedStepNet(perturb(StepNet(16, init_step=init)).eval())
              for init in (None, 2.0)]
    with pytest.warns(UserWarning, match='FoldedStepNet'):
        folded[0].load_state_dict(folded[1].state_dict())
    p, q = torch.randn(2, 2, 16)
    assert torch.equal(folded[0](p, q), folded[1](p, q))


def test_plain_steps_keep_the_hosts_keys():
    assert not ResidualStep(Plain(16)).state_dict()


def test_what_is_written():
    state = StepNet(16, init_step=1).state_dict()[KEY]
    assert state.dtype == torch.uint8 and state.shape == (256, )
    assert json.loads(bytes(state.tolist())) == dict(
        type='StepNet', init_step=1.0, inputs='both')


@pytest.mark.parametrize('change', [
    lambda t: t.half(), lambda t: t.bfloat16(), lambda t: (t + t / 1) / 2,
    lambda t: t.float() * 0.999 + t * 0.001], ids=range(4))
def test_casts_and_averages_leave_it(change):
    source, target = perturb(StepNet(16, init_step=1.0)), StepNet(16)
    state = source.state_dict()
    with pytest.warns(UserWarning, match='takes over'):
        target.load_state_dict({k: change(v) for k, v in state.items()})
    assert target.init_step == 1.0


def test_modules_on_meta_write_it_and_take_none_of_it():
    with torch.device('meta'):
        model = StepNet(16, init_step=1.0)
    state = model.state_dict()
    assert not state[KEY].is_meta
    target = StepNet(16)
    target.load_state_dict(
        {k: v.to('meta') for k, v in state.items()}, assign=True)
    assert target.init_step is None
    target = copy.deepcopy(model).to_empty(device='cpu')
    assert json.loads(bytes(target.state_dict()[KEY].tolist())) == json.loads(
        bytes(state[KEY].tolist()))


@pytest.mark.parametrize('content', [b'{', b'[]', b'{}', bytes(256)])
def test_damaged_records(content):
    state = StepNet(16).state_dict()
    state[KEY] = torch.tensor(list(content), dtype=torch.uint8)
    with pytest.raises(ValueError, match='no record of an attention'):
        StepNet(16).load_state_dict(state)


def test_a_record_without_weights_tells_nothing():
    """What transformers gives for a file without records: any memory."""
    model = StepNet(16)
    model.load_state_dict({KEY: torch.zeros(256)}, strict=False, assign=True)
