"""What a checkpoint says of its attentions, and what loaders make of it."""

import copy
import itertools
import warnings

import pytest
import torch
import torchvision

from mmstepnet import insert_steps
from mmstepnet.attentions import IEBN, Plain, StepNet, build_attention
from mmstepnet.attentions.record import KEY
from mmstepnet.messages import LOGGER
from mmstepnet.steps import ResidualStep, fused
from tests.test_attentions.conftest import ATTENTIONS, FIXED
from tests.utils import perturb, seeded

SETTINGS = [
    dict(cfg, init_step=step)
    for cfg in (*ATTENTIONS.values(), FIXED)
    for step in (None, 1.0)
]


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """As without OpenMMLab, whose log would get the warnings."""
    monkeypatch.setattr(LOGGER, 'handlers', [])


def step(cfg):
    """A residual step of 16 channels."""
    return ResidualStep(build_attention(cfg, 16, map_size=7)).eval()


def value(module):
    with torch.no_grad(), fused(False):
        return module(*seeded(2, 2, 16, 7, 7))


def load(target, state, strict=True):
    """Load, and give the warnings' texts."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        target.load_state_dict(state, strict=strict)
    return ' '.join(str(w.message) for w in said)


def test_no_pair_of_settings_loads_and_computes_something_else():
    """It refuses, or computes what was saved, and says what it took over."""
    steps = [perturb(step(cfg)) for cfg in SETTINGS]
    loaded = 0
    for (i, source), (j, _) in itertools.permutations(enumerate(steps), 2):
        target = step(SETTINGS[j])
        try:
            said = load(target, source.state_dict())
        except ValueError as error:
            for cfg in (SETTINGS[i], SETTINGS[j]):
                assert all(repr(value) in str(error) for value in cfg.values())
            continue
        except RuntimeError:  # PyTorch's, of other weights
            continue
        loaded += 1
        assert 'takes over' in said
        assert torch.equal(value(target), value(source)), (
            SETTINGS[i],
            SETTINGS[j],
        )
        assert target.attention.init_step == source.attention.init_step
    assert loaded == len(SETTINGS)  # of one kind, at another init_step


def without_records(state):
    return {k: v for k, v in state.items() if not k.endswith(KEY)}


def of_release_3(state):
    """Bytes, as version 0.3 wrote them; it knew fewer arguments."""
    return {
        k: torch.tensor(
            list(bytes(v.tolist()).replace(b', "iebn": "appendix"', b'')),
            dtype=torch.uint8,
        )
        if k.endswith(KEY)
        else v
        for k, v in state.items()
    }


def averaged(state):
    """As people write it; the sum of a record is not one."""
    return {k: sum([v] * 3) / 3 for k, v in state.items()}


def spoilt(state):
    return {k: v + k.endswith(KEY) for k, v in state.items()}


@pytest.mark.parametrize('cfg', SETTINGS, ids=str)
@pytest.mark.parametrize(
    'change, told',
    [
        (without_records, False),
        (of_release_3, True),
        (averaged, True),
        (spoilt, False),
    ],
)
def test_strictly_loads(cfg, change, told):
    source, target = perturb(step(cfg)), step(cfg)
    said = load(target, change(source.state_dict()))
    assert ('is ignored' in said) == (change is spoilt)
    torch.testing.assert_close(value(target), value(source))
    other = step(dict(cfg, init_step=0.5))
    said = load(other, change(source.state_dict()))
    assert (other.attention.init_step != 0.5) == ('takes over' in said) == told


def test_a_subclass_is_what_it_extends():
    class Mine(StepNet):
        pass

    assert not load(Mine(16), StepNet(16).state_dict())


@pytest.mark.parametrize('name', ['StepNet', 'SE'])
def test_plain_weights_in_gates_that_start_as_the_paper_warn(name):
    plain = torchvision.models.resnet18().state_dict()
    for init_step in (None, 1.0):
        target = torchvision.models.resnet18()
        insert_steps(target, name, init_step=init_step)
        said = load(target, plain, strict=False)
        assert (f'{name} finds no weights of its own' in said) == (
            init_step is None
        )


def test_iebn_and_plain():
    source, target = perturb(IEBN(16, init_step=1.0)).eval(), IEBN(16).eval()
    assert 'IEBN was built with init_step=None and takes over' in load(
        target, source.state_dict()
    )
    x = torch.randn(2, 16, 3, 3)
    assert torch.equal(target(x), source(x))
    assert not Plain(16).state_dict()


def on_meta(source, path, model):
    model = copy.deepcopy(model).to('meta')
    model.load_state_dict(source.state_dict(), assign=True)
    return model


def by_safetensors(source, path, model):
    files = pytest.importorskip('safetensors.torch')
    files.save_model(source, str(path / 'a'))
    files.load_model(model, str(path / 'a'))
    return model


@pytest.mark.filterwarnings('ignore:.*takes over')
@pytest.mark.parametrize('pass_on', [on_meta, by_safetensors])
def test_loaders(pass_on, tmp_path):
    """What was built at None takes over 1.0 from each."""
    source = perturb(step(dict(type='StepNet', init_step=1.0)))
    model = pass_on(source, tmp_path, step(dict(type='StepNet')))
    torch.testing.assert_close(value(model), value(source))
