"""A network with steps and LoRA's adapters, by peft."""

import copy

import pytest
import torch
from torchvision.models import ResNet, VisionTransformer
from torchvision.models.resnet import BasicBlock
from torchvision.ops import FrozenBatchNorm2d

import mmstepnet
from mmstepnet import steps
from tests.utils import same, with_moved_steps

peft = pytest.importorskip('peft')
X = torch.rand(
    4, 3, 32, 32, generator=torch.Generator().manual_seed(0)
).double()


def resnet():
    return ResNet(
        BasicBlock, [2, 2, 1, 1], num_classes=5, norm_layer=FrozenBatchNorm2d
    )


def vit():
    return VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5)


NETWORKS = dict(resnet=(resnet, r'.*\.conv[12]'), vit=(vit, r'.*\.mlp\.[03]'))


def stepped(build):
    torch.manual_seed(0)
    return with_moved_steps(build()).double()


def train(model):
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], 0.01
    )
    for k in range(3):
        model.train()(X + k).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize(
    'modules_to_save', [None, ['step.attention'], ['step']]
)
@pytest.mark.parametrize('network', NETWORKS)
def test_an_adapter_that_was_read_again_computes_the_same(
    network, modules_to_save, fused, tmp_path
):
    """Gates that it does not save stay the functions that they were."""
    build, targets = NETWORKS[network]
    with steps.fused(fused), torch.random.fork_rng():
        model = stepped(build)
        before = copy.deepcopy(model.state_dict())
        model = train(
            peft.get_peft_model(
                model,
                peft.LoraConfig(
                    target_modules=targets, modules_to_save=modules_to_save
                ),
            )
        )
        wanted = model(X)
        model.save_pretrained(tmp_path)
        again = peft.PeftModel.from_pretrained(stepped(build), tmp_path)
        same(again.eval()(X), wanted)
        # In training mode, too, gates that are not trained stay.
        same(again.train()(X), wanted)
        assert (again.eval()(X) - stepped(build).eval()(X)).abs().max() > 1e-5
        merged = again.merge_and_unload().eval()
        same(merged(X), wanted)
    after = merged.state_dict()
    assert after.keys() == before.keys()
    changed = {
        key
        for key in after
        if '.attention.' in key and not torch.equal(after[key], before[key])
    }
    assert bool(changed) == bool(modules_to_save)


@pytest.mark.parametrize(
    'modules_to_save', [['mlp_step'], ['mlp_step.attention']]
)
def test_steps_in_wrappers_are_counted_and_taken_out(modules_to_save):
    """Those that peft runs, and all."""
    plain = vit().double().eval()
    wanted = plain(X)
    model = copy.deepcopy(plain)
    names = mmstepnet.insert_steps(model)
    numbers = sum(
        p.numel()
        for group in mmstepnet.step_parameters(model)[1:]
        for p in group['params']
    )
    model = peft.get_peft_model(
        model,
        peft.LoraConfig(
            target_modules=NETWORKS['vit'][1], modules_to_save=modules_to_save
        ),
    )
    assert mmstepnet.mark_only_steps_as_trainable(model) == numbers
    assert not any(
        p.requires_grad
        for n, p in model.named_parameters()
        if 'original_module' in n
    )
    model.eval()
    found = [f'base_model.model.{name}' for name in names]
    with pytest.raises(ValueError, match='there are steps already'):
        mmstepnet.insert_steps(model)
    assert mmstepnet.remove_steps(model) == found
    torch.testing.assert_close(model(X), wanted)  # LoRA's B starts at 0
    assert mmstepnet.insert_steps(model) == found
    torch.testing.assert_close(model(X), wanted)
