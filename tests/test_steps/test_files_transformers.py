"""Steps in folders of ``save_pretrained`` and in models that PEFT wraps."""

import pytest
import torch

import mmstepnet
from tests.utils import perturb_gates, randomise, same

transformers = pytest.importorskip('transformers', reason='transformers')
if int(transformers.__version__.split('.')[0]) < 5:
    pytest.skip('needs transformers 5', allow_module_level=True)

from mmstepnet.integrations.transformers import load_folder  # noqa: E402

IMAGES = dict(
    pixel_values=torch.rand(
        2, 3, 32, 32, generator=torch.Generator().manual_seed(0)
    ).double()
)
CONFIG = transformers.ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=32,
    patch_size=8,
    intermediate_size=64,
)


def build(cls='ViTForImageClassification'):
    torch.manual_seed(0)
    return getattr(transformers, cls)(CONFIG).double().eval()


def stepped(cls='ViTForImageClassification'):
    model = build(cls)
    names = mmstepnet.insert_steps(model, example=IMAGES)
    return perturb_gates(model), names


def states(model):
    """What the last block makes, with a head or without."""
    return (getattr(model, 'vit', model))(**IMAGES)[0]


@pytest.mark.parametrize(
    'saved, loaded',
    [
        ('ViTForImageClassification', 'ViTForImageClassification'),
        ('ViTForImageClassification', 'ViTModel'),
        ('ViTModel', 'ViTForImageClassification'),
    ],
)
def test_folder_of_save_pretrained(saved, loaded, tmp_path):
    """Where the steps file lies beside the weights."""
    model, names = stepped(saved)
    model.save_pretrained(tmp_path)
    mmstepnet.save_steps(model, tmp_path)
    again = getattr(transformers, loaded).from_pretrained(tmp_path).eval()
    assert not torch.allclose(states(again), states(model), rtol=1e-2)
    assert [
        name.removeprefix('vit.') for name in load_folder(again, tmp_path)
    ] == [name.removeprefix('vit.') for name in names]
    assert torch.equal(states(again), states(model))


def test_weights_alone_do_not_say_where_steps_stand(tmp_path):
    model, _ = stepped()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match='insert_steps, with the arg'):
            load_folder(again, tmp_path)
        torch.save(model.state_dict(), tmp_path / 'pytorch_model.bin')
        (tmp_path / 'model.safetensors').unlink(missing_ok=True)
    mmstepnet.insert_steps(again, example=IMAGES)
    again.load_state_dict(model.state_dict())
    assert torch.equal(states(again.eval()), states(model))


def with_lora(model, **options):
    peft = pytest.importorskip('peft')
    return peft.get_peft_model(
        model, peft.LoraConfig(target_modules='all-linear', **options)
    )


def test_removed_blocks_of_a_model_in_peft(tmp_path):
    model, names = stepped()
    mmstepnet.remove_blocks(model, names[-1], IMAGES)
    mmstepnet.save_steps(model, tmp_path)
    other = with_lora(build())
    assert mmstepnet.load_steps(other.eval(), tmp_path) == names[:-1]
    same(states(other.base_model), states(model))


class DistributedDataParallel(torch.nn.Module):
    """Has the name of PyTorch's, and is a wrapper as it is."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_steps_are_not_put_behind_the_back_of_ddp(tmp_path):
    """Where PEFT stands between it and the model, too."""
    model, names = stepped()
    mmstepnet.save_steps(model, tmp_path)
    parallel = DistributedDataParallel(with_lora(build()))
    with pytest.raises(RuntimeError, match='before it is wrapped'):
        mmstepnet.load_steps(parallel, tmp_path)
    parallel = DistributedDataParallel(with_lora(model))
    assert mmstepnet.load_steps(parallel, tmp_path) == names


@pytest.mark.parametrize(
    'trained', [None, ['attn_step', 'mlp_step'], ['step.attention']]
)
def test_from_a_model_in_peft_to_its_base_and_back(trained, tmp_path):
    """Also where PEFT trains copies of the steps or of their gates."""
    model, names = stepped()
    model = with_lora(model, modules_to_save=trained)
    randomise(
        *(
            m
            for n, m in model.named_modules()
            if n.endswith('modules_to_save.default')
        )
    )
    wanted = states(model)
    mmstepnet.save_steps(model, tmp_path)
    for other in (
        build(),
        with_lora(build()),
        with_lora(stepped()[0], modules_to_save=['step.attention']),
    ):
        assert mmstepnet.load_steps(other.eval(), tmp_path) == names
        same(states(getattr(other, 'base_model', other)), wanted)
    base = build().vit
    mmstepnet.load_steps(base, tmp_path)
    same(states(base), wanted)
    # An adapter without copies leaves the steps as they were.
    model.add_adapter('other', with_lora(build()).peft_config['default'])
    model.set_adapter('other')
    mmstepnet.save_steps(model, tmp_path)
    mmstepnet.load_steps(base, tmp_path)
    same(states(base), states(stepped()[0]))
