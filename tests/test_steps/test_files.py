"""Steps in files: a fresh model with them is the one that was saved."""

import copy
import json
from argparse import Namespace
from importlib.util import find_spec

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from safetensors import safe_open
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torchvision.models import SwinTransformer, resnet18, resnet50

import mmstepnet
from mmstepnet.attentions.base import ATTENTIONS
from mmstepnet.steps import ResidualStep
from mmstepnet.steps.files import METADATA
from tests.test_steps import own_forward_blocks as blocks
from tests.test_steps.cases import randomise


def gates(model):
    return [m.attention for m in model.modules()
            if isinstance(m, ResidualStep)]


def written_block():
    """A network that no description knows."""
    return nn.Sequential(*(blocks.Encoder() for _ in range(3)))


def swin():
    return SwinTransformer(
        [4, 4], embed_dim=16, depths=[2, 1], num_heads=[2, 4],
        window_size=[4, 4], num_classes=3)


NETWORKS = {
    'resnet': (lambda: resnet18(num_classes=3), (2, 3, 64, 64), {}),
    'swin': (swin, (2, 3, 32, 32), {}),
    'written': (written_block, (2, 6, blocks.C),
                dict(example=torch.rand(2, 6, blocks.C))),
}


def make(kind, attention='StepNet', **options):
    """The network with steps, the one without, and what it is given."""
    build, shape, example = NETWORKS[kind]
    torch.manual_seed(0)
    plain = build().eval()
    model = copy.deepcopy(plain)
    names = mmstepnet.insert_steps(model, attention, **example, **options)
    randomise(*gates(model))
    return model, plain, torch.rand(shape), names


def check_loaded(made, path, **example):
    """The plain network with a file's steps is the one that has them."""
    model, plain, x, names = made
    assert mmstepnet.load_steps(plain, path, **example) == names
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize('kind', NETWORKS)
def test_fresh_model(kind, tmp_path):
    made = model, plain, x, _ = make(kind)
    mmstepnet.save_steps(model, tmp_path / 'a.safetensors')
    assert not torch.equal(model(x), plain(x))
    check_loaded(made, tmp_path / 'a.safetensors')
    assert plain.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize('attention,options', [
    *((name, {}) for name in ATTENTIONS if name != 'FCA'),
    ('SE', dict(reduction=4)), ('CBAM', dict(reduction=4)),
    ('SEM', dict(reduction=4)), ('OursSharedMLP', dict(reduction=4)),
    ('SGE', dict(groups=4)), ('StepNet', dict(inputs='x')),
    ('FCA', dict(map_size=14, reduction=8)), ('StepNet', dict(init_step=None)),
])
def test_all_attentions_and_arguments(attention, options, tmp_path):
    made = make('resnet', attention, blocks=['layer3'], **options)
    mmstepnet.save_steps(made[0], tmp_path)
    check_loaded(made, tmp_path)


def test_only_the_steps_are_in_the_file(tmp_path):
    model, _, _, _ = make('resnet')
    mmstepnet.save_steps(model, tmp_path)
    with safe_open(tmp_path / 'steps.safetensors', 'pt') as file:
        names = set(file.keys())
        about = json.loads(file.metadata()[METADATA])
    assert names == {n for n in model.state_dict() if '.step.attention.' in n
                     and not n.endswith('_extra_state')}
    assert about['format_version'] == 1
    assert about['blocks']['layer1.0'] == {
        'class': 'BasicBlock', 'steps': {'step': {
            'type': 'StepNet', 'init_step': 1.0, 'inputs': 'both'}}}


@pytest.mark.parametrize('name', ['fc', 'layer4'])  # which has steps
def test_modules_to_save(name, tmp_path):
    made = model, *_ = make('resnet')
    randomise(model.get_submodule(name))
    mmstepnet.save_steps(model, tmp_path, modules_to_save=[name])
    check_loaded(made, tmp_path)


class HeadWithState(nn.Linear):
    """Keeps something beside its tensors."""

    def get_extra_state(self):
        return torch.ones(1)

    def set_extra_state(self, state):
        raise AssertionError('a file of steps has none')


def test_module_to_save_with_a_state_of_its_own(tmp_path):
    made = model, plain, *_ = make('resnet')
    model.fc, plain.fc = (HeadWithState(512, 3) for _ in range(2))
    mmstepnet.save_steps(model, tmp_path, modules_to_save=['fc'])
    check_loaded(made, tmp_path)


def test_steps_in_wrappers(tmp_path):
    made = model, _, _, names = make('resnet')
    wrapped = copy.deepcopy(model)
    block = wrapped.layer1[1]
    block.step = torch.compile(block.step, backend='eager')
    mmstepnet.save_steps(wrapped, tmp_path)
    check_loaded(made, tmp_path)
    with torch.no_grad():
        wrapped.layer1[1].step.attention.pair_weight.zero_()
    assert mmstepnet.load_steps(wrapped, tmp_path) == names
    assert torch.equal(wrapped.layer1[1].step.attention.pair_weight,
                       model.layer1[1].step.attention.pair_weight)


def test_weights_beside_the_options_of_a_run(tmp_path):
    """As timm saves them."""
    if not hasattr(torch.serialization, 'safe_globals'):
        pytest.skip('needs PyTorch 2.5')
    made = model, *_ = make('resnet')
    torch.save(dict(state_dict=model.state_dict(), epoch=3,
                    args=Namespace(lr=0.1)), tmp_path / 'last.pth.tar')
    check_loaded(made, tmp_path / 'last.pth.tar')


def test_weights_beside_records_of_openmmlab(tmp_path):
    logging = pytest.importorskip('mmengine.logging', reason='mmengine')
    model, plain, _, _ = make('resnet')
    hub = logging.MessageHub('some')
    hub.update_scalar('loss', 1.0)
    torch.save(dict(meta=dict(epoch=1), state_dict=model.state_dict(),
                    message_hub=hub.state_dict()), tmp_path / 'epoch_1.pth')
    with pytest.raises(ValueError, match='tools/publish_model.py writes'):
        mmstepnet.load_steps(plain, tmp_path / 'epoch_1.pth')


def test_dtype_is_the_blocks(tmp_path):
    model, plain, x, _ = make('resnet')
    mmstepnet.save_steps(model.bfloat16(), tmp_path)
    mmstepnet.load_steps(plain.bfloat16(), tmp_path)
    x = x.bfloat16()
    assert torch.equal(model(x), plain(x))
    assert {p.dtype for p in plain.parameters()} == {torch.bfloat16}


def test_steps_that_are_there_get_the_weights(tmp_path):
    made = model, plain, *_ = make('resnet')
    mmstepnet.save_steps(model, tmp_path)
    mmstepnet.insert_steps(plain, init_step=0.5)
    check_loaded(made, tmp_path)


@pytest.mark.parametrize('kind', NETWORKS)
@pytest.mark.parametrize('ending', ['pth', 'safetensors'])
def test_weights_of_a_whole_model(kind, ending, tmp_path):
    made = model, plain, *_ = make(kind)
    path = tmp_path / f'whole.{ending}'
    if ending == 'pth':
        torch.save(dict(state_dict=model.state_dict()), path)
    else:
        safetensors.torch.save_file(model.state_dict(), path)
    _, _, example = NETWORKS[kind]
    if example:
        with pytest.raises(ValueError, match='found by running.*example='):
            mmstepnet.load_steps(plain, path)
    check_loaded(made, path, **example)


@pytest.mark.parametrize('prefix', [
    'module.', '_orig_mod.', 'module._orig_mod.', 'backbone.',
    'base_model.model.', 'model.backbone.'])
def test_weights_of_a_model_that_stood_in_another(prefix, tmp_path):
    made = model, *_ = make('resnet')
    path = tmp_path / 'whole.pth'
    torch.save({prefix + key: t for key, t in model.state_dict().items()},
               path)
    check_loaded(made, path)


def test_weights_of_blocks_in_wrappers(tmp_path):
    model, plain, x, names = make('resnet')
    wanted = model(x)
    for stage in (model.layer1, model.layer2):
        stage[1] = torch.compile(stage[1], backend='eager')
        stage[0] = checkpoint_wrapper(stage[0])
    torch.save(model.state_dict(), tmp_path / 'whole.pth')
    assert mmstepnet.load_steps(plain, tmp_path / 'whole.pth') == names
    assert torch.equal(plain(x), wanted)


def test_wrapped_models(tmp_path):
    model, plain, x, names = make('resnet')
    mmstepnet.save_steps(torch.compile(model, backend='eager'), tmp_path)
    wrapped = torch.compile(copy.deepcopy(plain), backend='eager')
    with pytest.raises(ValueError, match='would not see new parameters'):
        mmstepnet.load_steps(wrapped, tmp_path)
    mmstepnet.insert_steps(plain)
    wrapped = torch.compile(plain, backend='eager')
    assert mmstepnet.load_steps(wrapped, tmp_path) == names
    assert torch.equal(model(x), plain(x))


def in_process(rank, world, kinds, folder):
    torch.set_num_threads(1)  # a fork has not its parent's threads
    dist.init_process_group('gloo', rank=rank, world_size=world,
                            init_method=f'file://{folder}/store')
    for kind in kinds:
        (folder / kind).mkdir(exist_ok=True)
        save_and_load(kind, world, folder / kind)
    dist.destroy_process_group()


def save_and_load(kind, world, folder):
    """Save under a wrapper, load into it again, and compare."""
    model, _, x, names = make('resnet')
    wanted = model(x)
    if kind == 'DDP':
        wrapped = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard
        mesh = dist.device_mesh.init_device_mesh('cpu', (world, ))
        for stage in (model.layer2, model.layer3, model):
            fully_shard(stage, mesh=mesh)
        wrapped = model
    mmstepnet.save_steps(wrapped, folder)
    dist.barrier()
    with torch.no_grad():
        for gate in gates(model):
            for t in (*gate.parameters(), gate.bn.running_mean):
                t.zero_()
    assert mmstepnet.load_steps(wrapped, folder) == names
    torch.testing.assert_close(wrapped.eval()(x), wanted)


def test_saved_by_two_processes(tmp_path):
    kinds = ['DDP']
    if find_spec('torch.distributed.fsdp._fully_shard'):
        kinds.append('FSDP2')
    mp.start_processes(in_process, (2, kinds, tmp_path), 2,
                       start_method='fork')
    for kind in kinds:
        model, plain, x, _ = make('resnet')
        mmstepnet.load_steps(plain, tmp_path / kind)
        assert torch.equal(model(x), plain(x))


def test_other_errors(tmp_path):
    model, plain, _, _ = make('resnet')
    with pytest.raises(ValueError, match='ResNet has no steps to save'):
        mmstepnet.save_steps(plain, tmp_path)
    with pytest.raises(ValueError, match="names 'head'"):
        mmstepnet.save_steps(model, tmp_path, ['head'])
    with pytest.raises(TypeError, match='must be a list of names'):
        mmstepnet.save_steps(model, tmp_path, 'fc')
    with pytest.raises(FileNotFoundError, match='no weights: none of steps'):
        mmstepnet.load_steps(plain, tmp_path)
    with pytest.raises(FileNotFoundError, match='there is no file'):
        mmstepnet.load_steps(plain, tmp_path / 'nothing.safetensors')
    mmstepnet.save_steps(model, tmp_path)
    with pytest.raises(ValueError, match='is a Bottleneck here and was a Ba'):
        mmstepnet.load_steps(resnet50(), tmp_path)
    mmstepnet.insert_steps(plain, 'SE')
    with pytest.raises(ValueError, match='call remove_steps'):
        mmstepnet.load_steps(plain, tmp_path)
    torch.save(resnet18().state_dict(), tmp_path / 'plain.pth')
    with pytest.raises(ValueError, match='holds no steps'):
        mmstepnet.load_steps(resnet18(), tmp_path / 'plain.pth')
    old = {k: t for k, t in model.state_dict().items()
           if not k.endswith('_extra_state')}
    torch.save(old, tmp_path / 'old.pth')
    with pytest.raises(ValueError, match='as files of mmstepnet 0.2'):
        mmstepnet.load_steps(resnet18(), tmp_path / 'old.pth')


def test_repository_in_the_cache(tmp_path, monkeypatch):
    constants = pytest.importorskip('huggingface_hub.constants',
                                    reason='needs huggingface_hub')
    made = model, *_ = make('resnet')
    repository = tmp_path / 'models--somebody--steps'
    (repository / 'refs').mkdir(parents=True)
    (repository / 'refs' / 'main').write_text('a' * 40)
    mmstepnet.save_steps(
        model, repository / 'snapshots' / ('a' * 40) / 'steps.safetensors')
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
    check_loaded(made, 'hf://somebody/steps')


def test_models_without_weights(tmp_path):
    model, _, _, _ = make('resnet')
    mmstepnet.save_steps(model, tmp_path)
    with pytest.raises(ValueError, match='on the meta device'):
        mmstepnet.load_steps(resnet18(num_classes=3).to('meta'), tmp_path)


def test_folded_steps_are_not_saved(tmp_path):
    model, _, _, _ = make('resnet')
    with pytest.raises(ValueError, match='before fold'):
        mmstepnet.save_steps(mmstepnet.fold(model.eval()), tmp_path)
