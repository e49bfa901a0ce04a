"""Steps in files: a fresh model with them is the one that was saved."""

import copy
import json

import pytest
import safetensors.torch
import torch
import torch.nn as nn
from safetensors import safe_open
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.nn.utils import prune
from torchvision.models import SwinTransformer, resnet18, resnet50

import mmstepnet
from mmstepnet.attentions.base import ATTENTIONS
from mmstepnet.steps.files import METADATA
from tests.utils import Adds, perturb_gates, randomise, same


def chain(blocks=3):
    """A network of nobody's, with a head."""
    return nn.Sequential(
        nn.Sequential(*(Adds(nn.Linear(8, 8)) for _ in range(blocks))),
        nn.Linear(8, 3),
    )


def swin():
    return SwinTransformer(
        [4, 4],
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=3,
    )


NETWORKS = {
    'resnet': (lambda: resnet18(num_classes=3), (2, 3, 64, 64), {}),
    'swin': (swin, (2, 3, 32, 32), {}),
    'chain': (chain, (2, 6, 8), dict(example=torch.rand(2, 6, 8))),
}


def make(kind, attention='StepNet', **options):
    """The network with steps, the one without, and what it is given."""
    build, shape, example = NETWORKS[kind]
    torch.manual_seed(0)
    plain = build().eval()
    model = copy.deepcopy(plain)
    names = mmstepnet.insert_steps(model, attention, **example, **options)
    perturb_gates(model)
    return model, plain, torch.rand(shape), names


def made_double(kind):
    """Likewise, in float64."""
    model, plain, x, names = make(kind)
    return model.double(), plain.double(), x.double(), names


def check_loaded(made, path):
    """The plain network with a file's steps is the one that has them."""
    model, plain, x, names = made
    with torch.no_grad():
        wanted = model(x)
        assert not torch.equal(plain(x), wanted)
        assert mmstepnet.load_steps(plain, path) == names
        assert torch.equal(plain(x), wanted)
    assert plain.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    'kind, dtype, attention, options',
    [
        *(
            (kind, dtype, 'StepNet', {})
            for kind in NETWORKS
            for dtype in (torch.float32, torch.bfloat16)
        ),
        *(
            ('resnet', torch.float32, name, dict(blocks='layer3'))
            for name in ATTENTIONS
            if name not in ('FCA', 'Plain')
        ),
        *(
            ('resnet', torch.float32, name, dict(options, blocks='layer3'))
            for name, options in (
                ('SE', dict(reduction=4)),
                ('StepNet', dict(inputs='x')),
                ('FCA', dict(map_size=14, reduction=8)),
                (
                    'LayerScale',
                    dict(
                        init_step=None,
                        initial=-0.5,
                        shared=True,
                        learned=False,
                    ),
                ),
                ('StepNet', dict(init_step=None)),
            )
        ),
    ],
)
def test_fresh_model(kind, dtype, attention, options, tmp_path):
    model, plain, x, names = make(kind, attention, **options)
    made = model.to(dtype), plain.to(dtype), x.to(dtype), names
    state = torch.get_rng_state()
    mmstepnet.save_steps(model, tmp_path / 'a.safetensors')
    assert torch.equal(torch.get_rng_state(), state)
    check_loaded(made, tmp_path / 'a.safetensors')
    assert {p.dtype for p in plain.parameters()} == {dtype}


@pytest.mark.parametrize('named', ['', 'fc', 'layer4'])  # which has steps
def test_what_is_in_the_file(named, tmp_path):
    """The steps, what was named, and nothing else."""
    made = model, *_ = make('resnet')
    if named:
        randomise(model.get_submodule(named))
    mmstepnet.save_steps(model, tmp_path, [named] if named else [])
    with safe_open(tmp_path / 'steps.safetensors', 'pt') as file:
        assert set(file.keys()) == {
            n
            for n in model.state_dict()
            if not n.endswith('_extra_state')
            and ('.step.' in n or n.startswith(named or '-'))
        }
    check_loaded(made, tmp_path)


class Headed(nn.Module):
    """A model that is a part of another one."""

    def __init__(self, model):
        super().__init__()
        self.backbone, self.head = model, nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


def compiled(model):
    return torch.compile(model, backend='eager')


def with_wrapped_blocks(model):
    for stage in (model.layer1, model.layer2):
        stage[1] = compiled(stage[1])
        stage[0] = checkpoint_wrapper(stage[0])
    if hasattr(model.layer1[1]._orig_mod, 'step'):
        block = model.layer1[1]._orig_mod
        block.step = compiled(block.step)
    return model


def with_steps(model):
    mmstepnet.insert_steps(model)
    return model


WRAPS = dict(
    itself=lambda model: model,
    headed=Headed,
    compiled=compiled,
    averaged=torch.optim.swa_utils.AveragedModel,
    blocks=with_wrapped_blocks,
    stepped=with_steps,
    twice=lambda model: Headed(nn.DataParallel(model)),
)


@pytest.mark.parametrize(
    'saved, loaded',
    [
        *((name, 'itself') for name in WRAPS if name != 'stepped'),
        *(('itself', name) for name in WRAPS),
        ('headed', 'headed'),
    ],
)
def test_saved_in_one_and_loaded_in_another(saved, loaded, tmp_path):
    """Whatever is around the blocks: a wrapper, or more of a model."""
    model, plain, x, names = made_double('resnet')
    wanted = model(x)
    mmstepnet.save_steps(WRAPS[saved](model), tmp_path)
    other = WRAPS[loaded](copy.deepcopy(plain))
    found = mmstepnet.load_steps(other, tmp_path)
    assert [name.removeprefix('backbone.') for name in found] == names
    inner = [m for m in other.modules() if isinstance(m, type(plain))][0]
    with torch.no_grad():
        same(inner.eval()(x), wanted)


def test_a_trained_head_is_left_out_where_there_is_none(tmp_path, caplog):
    model, plain, x, names = make('resnet')
    wanted = model(x)
    mmstepnet.save_steps(Headed(model), tmp_path, ['head'])
    assert mmstepnet.load_steps(plain, tmp_path) == names
    assert "['head'] only [] is loaded" in caplog.text
    assert torch.equal(plain(x), wanted)


def test_removed_blocks(tmp_path):
    """With steps, or alone."""
    made = model, _, x, names = make('resnet')
    mmstepnet.remove_blocks(model, ['layer1.0', 'layer4.1'])
    mmstepnet.save_steps(model, tmp_path / 'a.safetensors')
    names[:] = [n for n in names if n not in ('layer1.0', 'layer4.1')]
    check_loaded(made, tmp_path / 'a.safetensors')
    stepped_everywhere, *_ = make('resnet')
    mmstepnet.load_steps(stepped_everywhere, tmp_path / 'a.safetensors')
    with torch.no_grad():
        assert torch.equal(stepped_everywhere(x), model(x))
    mmstepnet.remove_steps(model)
    mmstepnet.save_steps(model, tmp_path / 'b.safetensors')
    torch.manual_seed(0)
    plain = resnet18(num_classes=3).eval()
    check_loaded((model, plain, x, []), tmp_path / 'b.safetensors')
    mmstepnet.remove_blocks(plain, 'layer2.1')
    with pytest.raises(
        ValueError, match='does not know layer2.1, which was changed'
    ):
        mmstepnet.load_steps(plain, tmp_path / 'b.safetensors')


def test_a_compiled_model_that_has_run(tmp_path):
    """The compiler's guards do not see hooks."""
    model, plain, x, _ = made_double('chain')
    mmstepnet.save_steps(model, tmp_path)
    runs = compiled(plain)
    with torch.no_grad():
        runs(x)
        mmstepnet.load_steps(runs, tmp_path)
        same(runs(x), model(x))


class Scaled(nn.Linear):
    """A head with a state that is neither parameter nor buffer."""

    scale = 1.0

    def forward(self, x):
        return self.scale * super().forward(x)

    def get_extra_state(self):
        return torch.tensor(self.scale)

    def set_extra_state(self, value):
        self.scale = float(value)


def test_a_head_with_a_state_of_its_own(tmp_path):
    made = model, plain, _, _ = make('chain')
    model[1], plain[1] = Scaled(8, 3), Scaled(8, 3)
    model[1].scale = 5.0
    mmstepnet.save_steps(model, tmp_path, ['1'])
    check_loaded(made, tmp_path)


def change(where, value):
    """Change what a file says at a place, or one of its tensors."""

    def write(path, about, tensors):
        if isinstance(where, str):
            tensors[where][0] = value
        else:
            *outer, last = where
            inner = about
            for key in outer:
                inner = inner[key]
            inner[last] = value
        safetensors.torch.save_file(
            tensors, path, {METADATA: json.dumps(about)}
        )

    return write


CHANGES = dict(
    axis=(change(('blocks', '0.1', 'places', 0, 5), 1), 'was changed after'),
    variance=(
        change('0.1.step.attention.bn.running_var', -1.0),
        'was changed',
    ),
    format=(
        change(('format_version',), 1),
        'format 1 and format 2 is read.*load_state_dict',
    ),
    no_blocks=(
        lambda path, about, tensors: safetensors.torch.save_file(
            tensors, path
        ),
        'it does not say .*insert_steps.*load_state_dict',
    ),
    cut=(
        lambda path, about, tensors: path.write_bytes(path.read_bytes()[:-9]),
        'no whole file',
    ),
    pickled=(
        lambda path, about, tensors: torch.save(tensors, path),
        'no whole file',
    ),
)


@pytest.mark.parametrize('name', CHANGES)
def test_a_file_that_was_changed_is_refused(name, tmp_path):
    model, plain, _, _ = make('chain')
    path = tmp_path / 'steps.safetensors'
    mmstepnet.save_steps(model, path)
    with safe_open(path, 'pt') as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        about = json.loads(file.metadata()[METADATA])
    write, words = CHANGES[name]
    write(path, about, tensors)
    before = list(plain.modules())
    with pytest.raises(ValueError, match=words):
        mmstepnet.load_steps(plain, path)
    assert list(plain.modules()) == before


def test_an_attention_that_is_not_registered_here(tmp_path, monkeypatch):
    class OfNobody(mmstepnet.SE):
        pass

    monkeypatch.setitem(ATTENTIONS, 'OfNobody', OfNobody)
    model, plain, _, _ = make('chain', 'OfNobody')
    mmstepnet.save_steps(model, tmp_path)
    monkeypatch.delitem(ATTENTIONS, 'OfNobody')
    with pytest.raises(ValueError, match="type 'OfNobody'; register that cl"):
        mmstepnet.load_steps(plain, tmp_path)


def test_a_block_that_was_removed_takes_no_steps(tmp_path):
    model, plain, _, _ = make('resnet')
    mmstepnet.save_steps(model, tmp_path)
    mmstepnet.remove_blocks(plain, 'layer3.1')
    with pytest.raises(ValueError, match='none, because it was removed in th'):
        mmstepnet.load_steps(plain, tmp_path)


def rebuilt(change):
    """Its last block alone, so that the others must be left as they were."""
    model = chain()
    change(model[0][-1])
    return model


def stepped(*args, **options):
    return make(*args, **options)[0]


def with_deeper_head():
    model = resnet18()
    model.fc = nn.Sequential(nn.Linear(512, 3))
    return model


OTHERS = {
    'plain': (lambda: chain()[0][0], FileNotFoundError, 'steps.safetensors'),
    'resnet50': (resnet50, ValueError, r'the block layer1.0 \(BasicB'),
    'swin': (
        swin,
        ValueError,
        r'the block layer1.0 \(BasicBlock\), and the model has no',
    ),
    'shallower': (
        lambda: chain(2),
        ValueError,
        r'the block 0.2 \(Adds\), and the model has no',
    ),
    'two': (
        lambda: nn.ModuleList([resnet18(), resnet18()]),
        ValueError,
        'the block layer1.0 .* 2 times',
    ),
    'SE': (
        lambda: stepped('resnet', 'SE', first_block=False),
        ValueError,
        r'layer1.0 are .* in the file and .* in the model',
    ),
    'start': (
        lambda: stepped('resnet', init_step=0.5),
        ValueError,
        r'layer1.0 are .* in the file and .* in the model',
    ),
    'more': (
        lambda: stepped('resnet', first_block=True),
        ValueError,
        'does not know layer2.0, which was changed',
    ),
    'classes': (
        lambda: resnet18(num_classes=5),
        ValueError,
        r'2 tensors are of another shape \(fc.weight is \(3, 512\) .*5, 512\)',
    ),
    'deeper head': (
        with_deeper_head,
        ValueError,
        r'2 tensors are missing in the file \(fc.0.weight, fc.0.bias\), '
        r'2 tensors are unknown to the model \(fc.',
    ),
    'meta': (lambda: resnet18().to('meta'), ValueError, 'the meta device'),
    'wider': (
        lambda: rebuilt(lambda block: setattr(block, 'f', nn.Linear(16, 16))),
        ValueError,
        '0.2 has 8 channels in the file, 16 here$',
    ),
    'renamed': (
        lambda: rebuilt(lambda block: delattr(block, 'f')),
        ValueError,
        "0.2 has no module 'f', at which its step",
    ),
}


CHAINS = 'shallower', 'wider', 'renamed'


@pytest.mark.parametrize('name', OTHERS)
def test_a_file_of_another_model_is_refused(name, tmp_path):
    build, type_, words = OTHERS[name]
    model, path = build(), tmp_path / 'steps.safetensors'
    if name != 'plain':
        mmstepnet.save_steps(
            stepped('chain' if name in CHAINS else 'resnet'),
            path,
            ['fc'] if name in ('classes', 'deeper head') else [],
        )
    before = list(model.modules())
    with pytest.raises(type_, match=words):
        mmstepnet.load_steps(model, path)
    assert list(model.modules()) == before


def pruned():
    model = stepped('resnet')
    prune.l1_unstructured(model.layer1[0].step.attention, 'ie_bias', 3)
    return model


@pytest.mark.parametrize(
    'build, names, type_, words',
    [
        pytest.param(
            resnet18,
            [],
            ValueError,
            'ResNet has no steps to save; call insert_st',
            id='no steps',
        ),
        pytest.param(
            lambda: stepped('resnet'),
            ['head'],
            ValueError,
            "names 'head'",
            id='no such module',
        ),
        pytest.param(
            lambda: stepped('resnet'),
            'fc',
            TypeError,
            'must be a list of names',
            id='a name, no list',
        ),
        pytest.param(
            lambda: stepped('resnet'),
            [''],
            TypeError,
            'must be a list of names',
            id='an empty name',
        ),
        pytest.param(
            lambda: mmstepnet.fold(stepped('resnet')),
            [],
            ValueError,
            'before fold',
            id='folded',
        ),
        pytest.param(
            pruned,
            [],
            ValueError,
            'a StepNet could not be built again',
            id='another gate',
        ),
    ],
)
def test_what_is_not_saved(build, names, type_, words, tmp_path):
    with pytest.raises(type_, match=words):
        mmstepnet.save_steps(build(), tmp_path, names)
    assert not list(tmp_path.iterdir())
