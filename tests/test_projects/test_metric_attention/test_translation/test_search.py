"""Beam search against enumeration of all translations."""

import itertools
import math

import pytest
import torch

from projects.metric_attention.models import beam_search

PAD, BOS, EOS = 0, 1, 2
VOCAB = 5


class Table:
    """A language model: the next token by the two before, per sentence."""

    def __init__(self, sentences, seed):
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(
            sentences, VOCAB, VOCAB, VOCAB, generator=generator)
        logits[..., [PAD, BOS]] = -math.inf
        self.table = logits.log_softmax(-1)

    def score(self, n, tokens):
        before = [BOS, BOS, *tokens]
        return sum(
            float(self.table[n, before[i], before[i + 1], token])
            for i, token in enumerate(tokens))

    def step_for(self, beam_size):
        """A step that keeps its own state, as the decoder does."""
        state = {}

        def step(tokens, parents):
            before = state.get('tokens', tokens)[parents]
            state['tokens'] = tokens
            n = torch.arange(len(tokens)) // beam_size
            return self.table[n, before, tokens].clone()

        return step


def search(table, sentences, limit, beam_size):
    return beam_search(
        table.step_for(beam_size), sentences, bos_idx=BOS, eos_idx=EOS,
        pad_idx=PAD, max_length=torch.tensor(limit), beam_size=beam_size)


@pytest.mark.parametrize('seed', range(5))
def test_wide_beam_finds_the_best_translation(seed):
    limit = [4, 2, 3]
    table = Table(3, seed)
    # As wide as there are translations: nothing is lost.
    found = search(table, 3, limit, 64)
    words = range(EOS + 1, VOCAB)
    for n, longest in enumerate(limit):
        ended = [(*words_, EOS) for length in range(longest)
                 for words_ in itertools.product(words, repeat=length)]
        cut = list(itertools.product(words, repeat=longest))
        best = max(ended + cut,
                   key=lambda t, n=n: table.score(n, t) / len(t))
        assert found[n] == [t for t in best if t != EOS]


@pytest.mark.parametrize('seed', range(5))
def test_beam_of_one_takes_the_likeliest_next_token(seed):
    limit = [6, 1, 9]
    table = Table(3, seed)
    for n, tokens in enumerate(search(table, 3, limit, 1)):
        expected, before = [], (BOS, BOS)
        while len(expected) < limit[n]:
            token = int(table.table[(n, *before)].argmax())
            if token == EOS:
                break
            expected.append(token)
            before = (before[1], token)
        assert tokens == expected
