"""Metric-attention in models of transformers, equal to a written softmax."""

import os
import sys
from functools import partial

import pytest
import torch

from tests.programs import run_tool
from tests.utils import perturb

hf = pytest.importorskip('transformers', reason='needs transformers')
if int(hf.__version__.split('.')[0]) < 5:
    pytest.skip('needs transformers 5', allow_module_level=True)

from mmstepnet.integrations import transformers_attention as ours  # noqa: E402
from mmstepnet.integrations.transformers import load_folder  # noqa: E402

SMALL = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
)
WORDS = torch.arange(24).view(2, 12)
PADDED = torch.ones(2, 12, dtype=torch.long)
PADDED[0, 8:] = 0
LEFT = PADDED.flip(1)
CONFIGS = {
    'ViT': (
        dict(image_size=32, patch_size=8),
        [dict(pixel_values=torch.rand(2, 3, 32, 32))],
    ),
    'Bert': (
        dict(vocab_size=50),
        [
            dict(input_ids=WORDS, attention_mask=mask)
            for mask in (None, PADDED, LEFT)
        ],
    ),
    'Qwen3': (
        dict(vocab_size=50, num_key_value_heads=2, head_dim=8),
        [
            dict(input_ids=WORDS, attention_mask=mask)
            for mask in (None, PADDED, LEFT)
        ],
    ),
}


def written(module, query, key, value, mask, eps, embed, **kwargs):
    """The softmax of squared distances, pair by pair, in float64."""
    query, key = embed(module, query).double(), embed(module, key).double()
    key, value = (
        t.repeat_interleave(query.shape[1] // t.shape[1], 1)
        for t in (key, value.double())
    )
    scores = -(query.unsqueeze(3) - key.unsqueeze(2)).square().sum(-1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e30)
    weights = (scores / (eps or 1 / kwargs['scaling'])).softmax(-1)
    if mask is not None:
        weights = weights * mask.any(-1, keepdim=True)
    return (weights @ value).transpose(1, 2).to(torch.float32), None


def perceptron(module, x):
    hidden, out = module.metric.hidden, module.metric.metric
    return x + torch.tanh(x @ hidden.weight.T + hidden.bias) @ out.weight.T


def every_mask(*args, **kwargs):
    """For who knows no ``is_causal``."""
    kwargs['allow_is_causal_skip'] = False
    return hf.masking_utils.sdpa_mask(*args, **kwargs)


def build(kind, attention, eps, **options):
    ours.register_attentions()
    for name, embed in (('l2', lambda module, x: x), ('metric', perceptron)):
        hf.AttentionInterface.register(
            f'written {name}', partial(written, eps=eps, embed=embed)
        )
        hf.AttentionMaskInterface.register(f'written {name}', every_mask)
    config = getattr(hf, f'{kind}Config')(
        **SMALL,
        **CONFIGS[kind][0],
        **options,
        attn_implementation=attention.removeprefix('written '),
    )
    torch.manual_seed(0)
    model = getattr(hf, f'{kind}Model')(config).eval()
    if attention != 'sdpa':
        assert len(ours.add_metrics(model, eps=eps)) == 2
        model.set_attn_implementation(attention)
    perturb(model)
    return model


def outputs(model, **inputs):
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize('eps', [1.0, None])
@pytest.mark.parametrize('attention', ['l2', 'metric'])
@pytest.mark.parametrize('kind', CONFIGS)
def test_written_out(kind, attention, eps):
    model = build(kind, attention, eps)
    reference = build(kind, f'written {attention}', eps)
    plain = build(kind, 'sdpa', eps)
    for inputs in CONFIGS[kind][1]:
        found, wanted = (outputs(m, **inputs) for m in (model, reference))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found, outputs(plain, **inputs), atol=1e-2)


@pytest.mark.parametrize('cache', ['dynamic', 'static'])
@pytest.mark.parametrize(
    'mask', [pytest.param(None, id='no mask'), pytest.param(LEFT, id='padded')]
)
def test_caches(cache, mask):
    """Word by word it is what all words give at once."""
    model = build('Qwen3', 'metric', None)
    wanted = outputs(model, input_ids=WORDS, attention_mask=mask)
    past = (
        hf.DynamicCache(config=model.config)
        if cache == 'dynamic'
        else (hf.StaticCache(config=model.config, max_cache_len=16))
    )
    found = []
    for start, stop in ((0, 6), (6, 7), (7, 12)):
        found.append(
            outputs(
                model,
                input_ids=WORDS[:, start:stop],
                past_key_values=past,
                use_cache=True,
                attention_mask=None if mask is None else mask[:, :stop],
            )
        )
    seen = torch.ones_like(WORDS) if mask is None else mask
    torch.testing.assert_close(
        torch.cat(found, 1)[seen > 0], wanted[seen > 0], rtol=1e-4, atol=1e-4
    )


LOADED = """
import sys, torch, transformers
from mmstepnet.integrations.transformers import load_folder
folder, kind = sys.argv[1:]
model = getattr(transformers, kind).from_pretrained(folder).eval()
assert load_folder(model, folder)
inputs, wanted = torch.load(f'{folder}/wanted.pth')
with torch.no_grad():
    assert torch.equal(model.base_model(**inputs)[0], wanted)
"""


@pytest.mark.parametrize(
    'kind, attention, eps, others',
    [
        pytest.param(
            'Bert',
            'metric',
            None,
            ['Model', 'ForSequenceClassification'],
            id='BERT, metric',
        ),
        pytest.param('Bert', 'l2', 2.0, ['Model'], id='BERT, L2'),
        # Its files have other names than its modules.
        pytest.param(
            'ViT',
            'metric',
            None,
            ['Model', 'ForImageClassification'],
            id='ViT, metric',
        ),
    ],
)
def test_a_folder_in_a_new_process(tmp_path, kind, attention, eps, others):
    """A model comes back as it was, with a head or without."""
    model, inputs = build(kind, attention, eps), CONFIGS[kind][1][0]
    model.save_pretrained(tmp_path)
    torch.save((inputs, outputs(model, **inputs)), tmp_path / 'wanted.pth')
    for other in others:
        run_tool(
            '-c',
            LOADED,
            tmp_path,
            f'{kind}{other}',
            PYTHONPATH=os.pathsep.join(sys.path),
        )


def test_metrics_of_which_the_config_says_nothing(tmp_path):
    model = build('Bert', 'metric', None)
    del model.config.metric_attention
    model.save_pretrained(tmp_path)
    again = hf.BertModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match='config does not say of which'):
        load_folder(again, tmp_path)


def test_trained_metrics_are_not_made_anew_without_a_word(tmp_path, caplog):
    """A refusal names what reads them first; who adds new ones is warned."""
    model, inputs = build('Bert', 'metric', 1.0), CONFIGS['Bert'][1][1]
    assert not caplog.text
    model.save_pretrained(tmp_path)
    again = hf.BertModel.from_pretrained(
        tmp_path, attn_implementation='metric'
    ).eval()
    with pytest.raises(ValueError, match='load_folder.*, .* add_metrics'):
        again(**inputs)
    ours.add_metrics(again)
    assert 'these are new: mmstepnet' in caplog.text
    assert not torch.allclose(
        outputs(again, **inputs), outputs(model, **inputs)
    )
    with pytest.raises(ValueError, match='has metrics, such as encoder.layer'):
        ours.add_metrics(again)
    caplog.clear()
    assert len(load_folder(again, tmp_path)) == 2
    assert torch.equal(outputs(again, **inputs), outputs(model, **inputs))
    assert not caplog.text
    assert again.config.metric_attention['read_by'].startswith('mmstepnet.')


@pytest.mark.parametrize('lost', [False, True], ids=['whole', 'lacking'])
def test_metrics_in_a_pickle(tmp_path, lost):
    """As another trainer writes it; one that lacks some is refused."""
    model, inputs = build('Bert', 'metric', 1.0), CONFIGS['Bert'][1][1]
    model.save_pretrained(tmp_path)
    weights = model.state_dict()
    if lost:
        del weights['encoder.layer.1.attention.self.metric.hidden.bias']
    torch.save(weights, tmp_path / 'pytorch_model.bin')
    (tmp_path / 'model.safetensors').unlink()
    again = hf.BertModel.from_pretrained(tmp_path).eval()
    if lost:
        with pytest.raises(ValueError, match='lacks encoder.layer.1.*bias'):
            load_folder(again, tmp_path)
    else:
        load_folder(again, tmp_path)
        assert torch.equal(outputs(again, **inputs), outputs(model, **inputs))


def test_an_adapter_of_metrics(tmp_path):
    """It needs a base model with metrics, which load_folder says."""
    peft = pytest.importorskip('peft')
    model = build('Bert', 'metric', 1.0)
    model.save_pretrained(tmp_path / 'base')
    config = peft.LoraConfig(
        target_modules=['query'], modules_to_save=['self.metric']
    )
    model = perturb(peft.get_peft_model(model, config).eval())
    model.save_pretrained(tmp_path / 'adapter')
    base = hf.BertModel.from_pretrained(tmp_path / 'base').eval()
    with pytest.raises(ValueError, match=r'needs encoder\.layer\.0.*\.metric'):
        load_folder(base, tmp_path / 'adapter')
    load_folder(base, tmp_path / 'base')
    assert load_folder(base, tmp_path / 'adapter') == []
    trained = {
        key: t
        for key, t in model.state_dict().items()
        if 'lora_' in key or 'modules_to_save' in key
    }
    again = peft.PeftModel.from_pretrained(base, tmp_path / 'adapter').eval()
    for key, t in trained.items():
        assert torch.equal(again.state_dict()[key], t), key
    assert load_folder(again, tmp_path / 'adapter') == []


@pytest.mark.parametrize('attention', ['l2', 'metric'])
@pytest.mark.parametrize(
    'kind, options, word',
    [
        # These take any attn_implementation, and compute their own.
        *(
            pytest.param(
                kind, options, f'{kind}Model.*calls no attention', id=kind
            )
            for kind, options in (
                ('DebertaV2', {}),
                ('MPNet', {}),
                ('RoFormer', {}),
                (
                    'RemBert',
                    dict(input_embedding_size=32, output_embedding_size=32),
                ),
                ('Bloom', dict(n_layer=2, n_head=4)),
            )
        ),
        # These need the scores.
        pytest.param(
            'T5Encoder',
            dict(
                d_model=32, d_kv=8, num_layers=1, num_heads=4, dropout_rate=0.0
            ),
            'has no position_bias',
            id='T5',
        ),
        pytest.param(
            'Gemma2',
            dict(head_dim=8, num_key_value_heads=2),
            'has no softcap',
            id='Gemma 2',
        ),
    ],
)
def test_models_that_are_refused(kind, options, word, attention):
    ours.register_attentions()
    config = getattr(hf, kind.removesuffix('Encoder') + 'Config')
    model = getattr(hf, f'{kind}Model')(
        config(
            **{
                **(SMALL if kind != 'T5Encoder' else {}),
                'vocab_size': 50,
                **options,
            },
            attn_implementation=attention,
        )
    )
    with pytest.raises(ValueError, match=word):
        ours.add_metrics(model)
    assert ours._heads is None
    assert not any('.metric.' in name for name in model.state_dict())


@pytest.mark.parametrize(
    'change, inputs, word',
    [
        pytest.param(
            lambda model: model.train(),
            {},
            'no dropout; set it to 0 in the config',
            id='dropout',
        ),
        pytest.param(
            lambda model: [
                vars(layer.attention.self).pop('metric_eps')
                for layer in model.encoder.layer
            ],
            {},
            'call load_folder.*add_metrics',
            id='no metrics',
        ),
        pytest.param(
            lambda model: None,
            dict(attention_mask=torch.zeros(2, 1, 12, 12)),
            'a bias of the scores',
            id='a bias as mask',
        ),
        pytest.param(
            lambda model: None,
            dict(position_bias=torch.zeros(2, 1, 12, 12)),
            'has no position_bias; take a model',
            id='a bias of positions',
        ),
    ],
)
def test_calls_that_are_refused(change, inputs, word):
    model = build('Bert', 'metric', 1.0)
    change(model)
    with pytest.raises(ValueError, match=word):
        model(input_ids=WORDS, **inputs)


def test_what_is_called_trains_and_heads_that_are_not_get_no_metric():
    """SigLIP's pooling head attends by itself."""
    ours.register_attentions()
    model = hf.SiglipVisionModel(
        hf.SiglipVisionConfig(
            **SMALL, image_size=32, patch_size=8, attn_implementation='metric'
        )
    )
    names = ours.add_metrics(model)
    assert len(names) == 2 and all('self_attn' in name for name in names)
    pixels = torch.rand(2, 3, 32, 32)
    model(pixel_values=pixels).pooler_output.square().sum().backward()
    assert all(
        p.grad.abs().sum() > 0
        for name, p in model.named_parameters()
        if '.metric.' in name
    )
