"""The Transformer against PyTorch's, and what must not inform what."""

import math

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from projects.metric_attention.models import TranslationTransformer
from tests.utils import copy_attention, perturb

PAD, BOS, EOS = 0, 1, 2
ATTENTIONS = ('DotProductAttention', 'L2Attention', 'MetricAttention')


def build(attention='MetricAttention', seed=0, eps=2.0, **kwargs):
    sizes = dict(
        vocab_size=30,
        embed_dims=16,
        num_heads=4,
        num_layers=2,
        feedforward_dims=24,
        max_length=40,
    )
    model = TranslationTransformer(
        attention=dict(type=attention, eps=eps), **{**sizes, **kwargs}
    )
    return perturb(model, seed).double().eval()


def sentences(*lengths, seed=0):
    """Random sentences of so many words, padded at the end."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.full((len(lengths), max(lengths) + 2), PAD)
    for row, length in zip(batch, lengths):
        row[0] = BOS
        row[1 : length + 1] = torch.randint(
            3, 30, (length,), generator=generator
        )
        row[length + 1] = EOS
    return batch


def copy_layer(host, ours):
    copy_attention(host.self_attn, ours.self_attention)
    if hasattr(ours, 'cross_attention'):
        copy_attention(host.multihead_attn, ours.cross_attention)
        host.norm3.load_state_dict(ours.norm3.state_dict())
    for name in ('norm1', 'norm2'):
        getattr(host, name).load_state_dict(getattr(ours, name).state_dict())
    host.linear1.load_state_dict(ours.ffn[0].state_dict())
    host.linear2.load_state_dict(ours.ffn[-1].state_dict())


@torch.no_grad()
def test_dot_product_equals_pytorchs_transformer():
    model = build('DotProductAttention', eps=math.sqrt(16 / 4))
    sizes = dict(d_model=16, nhead=4, dim_feedforward=24, batch_first=True)
    encoder = (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**sizes), 2, enable_nested_tensor=False
        )
        .double()
        .eval()
    )
    decoder = (
        nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 2)
        .double()
        .eval()
    )
    for host, ours in ((encoder, model.encoder), (decoder, model.decoder)):
        for pair in zip(host.layers, ours):
            copy_layer(*pair)
    source, target = sentences(9, 4, 6), sentences(3, 8, 5, seed=1)

    def embed(embedding, ids):
        places = torch.tensor(
            [
                [
                    math.sin(t / 10000 ** (c / 16))
                    if c % 2 == 0
                    else math.cos(t / 10000 ** ((c - 1) / 16))
                    for c in range(16)
                ]
                for t in range(ids.shape[1])
            ],
            dtype=torch.float32,
        )
        return F.embedding(ids, embedding.tokens.weight) * 4 + places

    padding = source == PAD
    memory = encoder(
        embed(model.source_embedding, source), src_key_padding_mask=padding
    )
    length = target.shape[1]
    expected = model.output(
        decoder(
            embed(model.target_embedding, target),
            memory,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            memory_key_padding_mask=padding,
        )
    )
    real = target != PAD
    got = logits(model, source, target)
    torch.testing.assert_close(got[real], expected[real])


def logits(model, source, target):
    """Of the token after each of target, (N, T, V)."""
    return model.output(model.decode(target, *model.encode(source)))


@torch.no_grad()
@pytest.mark.parametrize('attention', ATTENTIONS)
def test_losses_sentence_by_sentence(attention):
    """What stands beside a sentence, and padding, changes nothing."""
    model = build(attention)
    source, target = sentences(9, 4, 6), sentences(3, 8, 5, seed=1)
    terms = []
    for source_ids, ids in zip(source, target):
        ids = ids[ids != PAD]
        own = logits(
            model, source_ids[source_ids != PAD][None], ids[None, :-1]
        )[0]
        terms.append(F.cross_entropy(own, ids[1:], reduction='none'))
    sums = [own.sum().item() for own in terms]
    counts = [len(own) for own in terms]
    loss = model(source, target, mode='loss')['loss'].item()
    assert loss == pytest.approx(sum(sums) / sum(counts), rel=1e-5)
    found = model(source, target)
    assert [f['num_tokens'] for f in found] == counts == [4, 9, 6]
    assert [f['nll'] for f in found] == pytest.approx(sums, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize('attention', ATTENTIONS)
def test_translation_equals_full_recomputation(attention):
    """Sentence by sentence, each next token from all of the text so far."""
    source = sentences(6, 3, 9, 1, 5)
    lengths = set()
    for seed in range(3):
        model = build(attention, seed)
        model.output.bias[EOS] += 1.0
        found = model(source, source)
        for row, result in zip(source, found):
            row = row[row != PAD][None]
            text = [BOS]
            while len(text) <= min(2 * row.shape[1] + 10, model.max_length):
                scores = logits(model, row, torch.tensor([text]))[0, -1]
                scores[[PAD, BOS]] = -math.inf
                text.append(int(scores.argmax()))
                if text[-1] == EOS:
                    break
            expected = [token for token in text if token > EOS]
            assert result['tokens'] == expected
            lengths.add(len(expected))
    assert len(lengths) > 1
