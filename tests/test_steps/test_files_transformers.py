"""Steps in folders of ``save_pretrained`` and in models that PEFT wraps."""

import json
import re

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


def test_a_folder_says_what_it_holds(tmp_path):
    """Its config names the steps, and its card has the call that reads them.

    They say it once, however often steps are saved, and keep what was there.
    """
    model, names = stepped()
    gone = names.pop()
    mmstepnet.remove_blocks(model, gone, IMAGES)
    model.save_pretrained(tmp_path)
    before = json.loads((tmp_path / 'config.json').read_text())
    card = tmp_path / 'README.md'
    card.write_text('# My model\n\nMine.\n')
    for _ in range(2):
        mmstepnet.save_steps(model, tmp_path)
    config = json.loads((tmp_path / 'config.json').read_text())
    note = config.pop('mmstepnet')
    assert config == before
    assert note['steps'] == {name: ['StepNet', 'StepNet'] for name in names}
    assert note['removed_blocks'] == [gone]
    text = card.read_text()
    assert text.startswith('# My model\n\nMine.\n\n## ')
    for name in (*names, gone):
        assert text.count(f'`{name}`') == 1
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.config.mmstepnet == note
    (program,) = re.findall('```python\n(.*?)```', text, re.DOTALL)
    exec(program, dict(model=again, folder=tmp_path))
    assert torch.equal(states(again), states(model))


def test_folders_of_others_get_no_note(tmp_path):
    """As those of a trainer of its own, or of timm."""
    (tmp_path / 'config.json').write_text('{"architecture": "vit"}')
    mmstepnet.save_steps(stepped()[0], tmp_path)
    assert (tmp_path / 'config.json').read_text() == '{"architecture": "vit"}'
    assert not (tmp_path / 'README.md').exists()


def test_no_folder_and_a_folder_without_ours(tmp_path, caplog):
    model = build()
    with pytest.raises(FileNotFoundError, match='no folder .*snapshot_down'):
        load_folder(model, tmp_path / 'nofolder')
    model.save_pretrained(tmp_path)
    assert load_folder(model, tmp_path) == []
    assert 'holds no steps and no metrics' in caplog.text


@pytest.mark.parametrize('cls', ['ViTForImageClassification', 'ViTModel'])
def test_refusals_name_modules(cls, tmp_path):
    """Not the keys of a file, which has older names for a ViT's layers."""
    model, names = stepped()
    model.save_pretrained(tmp_path)
    again = getattr(transformers, cls).from_pretrained(tmp_path)
    part = f'{names[0].removeprefix("" if "For" in cls else "vit.")}.attn_step'
    assert 'layers.0' in part
    with pytest.raises(ValueError, match=f'weights of {part}, .*, …, which'):
        load_folder(again, tmp_path)


def adapter(tmp_path):
    """A model that PEFT has trained, gates included, in a folder."""
    peft = pytest.importorskip('peft')
    model, names = stepped()
    model = with_lora(model, modules_to_save=['step.attention'])
    randomise(
        *(
            m
            for n, m in model.named_modules()
            if n.endswith('modules_to_save.default') or 'lora_' in n
        )
    )
    model.save_pretrained(tmp_path)
    return peft, model.eval(), names


def test_an_adapter_needs_its_steps(tmp_path):
    """PEFT leaves them out and says nothing; so we look at its keys."""
    peft, model, names = adapter(tmp_path)
    for base in (build(), peft.PeftModel.from_pretrained(build(), tmp_path)):
        with pytest.raises(
            ValueError, match=f'{names[0]}.attn_step, .* lacks'
        ):
            load_folder(base, tmp_path)
    base = stepped()[0]
    assert load_folder(base, tmp_path) == []
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    same(states(again.base_model), states(model.base_model))
    assert load_folder(again, tmp_path) == []


def test_an_adapter_with_steps_beside_it(tmp_path):
    """Whatever is called first, PEFT or ours."""
    peft, model, names = adapter(tmp_path)
    mmstepnet.save_steps(model, tmp_path)
    assert f'`{names[0]}`' in (tmp_path / 'README.md').read_text()
    first = build()
    assert load_folder(first, tmp_path) == names
    first = peft.PeftModel.from_pretrained(first, tmp_path).eval()
    second = peft.PeftModel.from_pretrained(build(), tmp_path).eval()
    wrong = states(second.base_model)
    assert not torch.allclose(wrong, states(model.base_model), rtol=1e-2)
    assert load_folder(second, tmp_path) == names
    for again in (first, second):
        same(states(again.base_model), states(model.base_model))
