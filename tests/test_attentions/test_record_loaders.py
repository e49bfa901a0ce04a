"""Networks with steps through other tools' files, copies and wrappers.

A network built with ``init_step=None`` takes over 1.0 from each.
"""

import copy
from functools import partial

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from mmstepnet import insert_steps
from mmstepnet.attentions.record import KEY
from tests.utils import not_on_torch_21, perturb

models = pytest.importorskip('torchvision.models')
pytestmark = pytest.mark.filterwarnings('ignore:.*takes over')


def network(init_step=None, attention='StepNet'):
    model = models.resnet18(num_classes=3)
    insert_steps(model, attention, init_step=init_step, first_block=True)
    return model.eval()


@pytest.fixture(scope='module')
def source():
    return perturb(network(1.0))


def same(model, source):
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), source(x))


@pytest.mark.parametrize('assign', [False, True])
def test_pytorch(source, tmp_path, assign):
    torch.save(source.state_dict(), tmp_path / 'a.pth')
    with torch.device('meta' if assign else 'cpu'):
        model = network()
    model.load_state_dict(
        torch.load(tmp_path / 'a.pth', weights_only=True), assign=assign)
    same(model, source)


def test_to_empty(source):
    with torch.device('meta'):
        model = network()
    model.to_empty(device='cpu').load_state_dict(source.state_dict())
    same(model, source)


def test_safetensors(source, tmp_path):
    files = pytest.importorskip('safetensors.torch')
    path = str(tmp_path / 'a.safetensors')
    files.save_file(source.state_dict(), path)
    model = network()
    model.load_state_dict(files.load_file(path))
    same(model, source)
    files.save_model(source, path)
    files.load_model(model := network(), path)
    same(model, source)


@pytest.mark.parametrize('strict', [True, False])
@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_mmengine(source, tmp_path, strict, prefix):
    runner = pytest.importorskip('mmengine.runner')
    path = str(tmp_path / 'a.pth')

    def load(model, weights):
        torch.save(dict(state_dict={prefix + k: v
                                    for k, v in weights.items()}), path)
        runner.load_checkpoint(model, path, strict=strict,
                               revise_keys=[(rf'^{prefix}', '')])
        return model

    weights = source.state_dict()
    same(load(network(), weights), source)
    old = {k: v for k, v in weights.items() if not k.endswith(KEY)}
    same(load(network(1.0), old), source)  # strictly too
    with pytest.raises(ValueError, match=r'layer1.0.step.attention.*StepNet.*'
                       'the model has OursNoNorm'):
        load(network(attention='OursNoNorm'), weights)


@pytest.mark.parametrize('buffers', [True, False])
def test_averages(source, buffers):
    average = AveragedModel(network(1.0), use_buffers=buffers)
    average.update_parameters(source)
    model = network()
    model.load_state_dict(average.module.state_dict())
    if buffers:
        same(model, source)
    hosts = pytest.importorskip('mmengine.model')
    average = hosts.ExponentialMovingAverage(
        source, momentum=0.1, update_buffers=buffers)
    for _ in range(2):
        average.update_parameters(source)
    model = network()
    model.load_state_dict(average.module.state_dict())
    same(model, source)


def test_timm(source, tmp_path):
    utils = pytest.importorskip('timm.utils')
    from timm.models import load_checkpoint
    for kind in (utils.ModelEmaV2, utils.ModelEmaV3):
        average = kind(network(1.0), decay=0.0)
        average.update(source)
        model = network()
        model.load_state_dict(average.module.state_dict())
        same(model, source)
    torch.save(dict(state_dict=source.state_dict()), tmp_path / 'a.pth')
    load_checkpoint(model := network(), str(tmp_path / 'a.pth'))
    same(model, source)


def test_functional_call(source):
    model, x = network(1.0), torch.randn(2, 3, 32, 32)
    out = torch.func.functional_call(model, source.state_dict(), (x, ))
    torch.testing.assert_close(out, source(x))


@not_on_torch_21('has no such functions')
def test_distributed_checkpoints(source, one_process, tmp_path):
    checkpoint = pytest.importorskip('torch.distributed.checkpoint')
    checkpoint.save(source.state_dict(), checkpoint_id=tmp_path / 'a')
    model = network()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=tmp_path / 'a')
    model.load_state_dict(state)
    same(model, source)


def transformer(init_step=None):
    model = models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5)
    insert_steps(model, init_step=init_step)
    return model.eval()


def with_syncbn(model):
    """As before DDP, which takes it on GPUs alone."""
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert any('SyncBatchNorm' in type(m).__name__ for m in model.modules())
    return model, model.state_dict, model.load_state_dict


def under_ddp(model):
    from torch.nn.parallel import DistributedDataParallel
    wrapped = DistributedDataParallel(model)
    return wrapped, wrapped.module.state_dict, wrapped.module.load_state_dict


def under_fsdp(model):
    from torch.distributed.fsdp import FullyShardedDataParallel
    layers = model.encoder.layers
    for key, block in layers._modules.items():
        layers._modules[key] = FullyShardedDataParallel(
            block, device_id=torch.device('cpu'), use_orig_params=True)
    wrapped = FullyShardedDataParallel(
        model, device_id=torch.device('cpu'), use_orig_params=True)
    return wrapped, wrapped.state_dict, wrapped.load_state_dict


def under_fsdp2(model):
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh('cpu', (1, ))
    for part in (*model.encoder.layers, model):
        fully_shard(part, mesh=mesh)
    whole = StateDictOptions(full_state_dict=True)
    return (model, partial(get_model_state_dict, model, options=whole),
            partial(set_model_state_dict, model, options=whole))


def under_accelerate(model):
    accelerate = pytest.importorskip('accelerate')
    accelerate.cpu_offload(
        model, execution_device=torch.device('cpu'),
        preload_module_classes=['MultiheadAttention'])
    assert all(p.is_meta for p in model.parameters())

    def state_dict():
        accelerate.hooks.remove_hook_from_module(model, recurse=True)
        return model.state_dict()

    return model, state_dict, None


@not_on_torch_21('shards on GPUs alone')
@pytest.mark.parametrize('wrap', [
    with_syncbn, under_ddp, under_fsdp, under_fsdp2, under_accelerate])
def test_a_vision_transformer_read_again(wrap, one_process):
    """It computes what it did, and so do those that get its weights."""
    source = perturb(transformer(1.0))
    wrapped, state_dict, _ = wrap(copy.deepcopy(source))
    same(wrapped, source)
    weights, model = state_dict(), transformer()
    model.load_state_dict(weights)
    same(model, source)
    wrapped, _, load = wrap(transformer())
    if load is not None:
        load(dict(weights))
        same(wrapped, source)
