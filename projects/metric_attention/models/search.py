"""Beam search over a model that scores the next token."""

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]


def beam_search(step: Step,
                batch_size: int,
                *,
                bos_idx: int,
                eos_idx: int,
                pad_idx: int,
                max_length: Tensor,
                beam_size: int = 1) -> list[list[int]]:
    """Find each sentence's best tokens; greedy search is a beam of one.

    A hypothesis that has ended stays in the beam and keeps its score. Of the
    last beam the one of the highest log-likelihood a token is taken.

    Args:
        step (Callable): Takes the last tokens (N*B,), int64, and which of
            the hypotheses of the step before they continue (N*B,); returns
            the log-probabilities of the next token, (N*B, V).
        batch_size (int): Sentences N.
        bos_idx (int): Token that each begins with.
        eos_idx (int): Token that ends it.
        pad_idx (int): Token that follows the end.
        max_length (Tensor): Most tokens each may get, its end included,
            int64, (N,).
        beam_size (int): Hypotheses B a sentence. Defaults to 1.

    Returns:
        list[list[int]]: Tokens of each sentence, without begin and end.
    """
    device = max_length.device
    rows = torch.arange(batch_size, device=device)[:, None] * beam_size
    scores = torch.full((batch_size, beam_size), -torch.inf, device=device)
    # The hypotheses of a sentence are all the same at first.
    scores[:, 0] = 0
    tokens = torch.full((batch_size * beam_size, 1), bos_idx, device=device)
    parents = torch.arange(batch_size * beam_size, device=device)
    ended = torch.zeros_like(parents, dtype=torch.bool)
    lengths = torch.zeros_like(parents)
    limit = max_length.repeat_interleave(beam_size)
    for _ in range(int(max_length.max())):
        next_scores = step(tokens[:, -1], parents)
        vocab_size = next_scores.shape[1]
        next_scores[:, pad_idx] = next_scores[:, bos_idx] = -torch.inf
        next_scores[ended] = -torch.inf
        next_scores[ended, pad_idx] = 0
        total = scores[:, :, None] + next_scores.unflatten(0, scores.shape)
        scores, place = total.flatten(1).topk(beam_size)
        parents = (rows + place // vocab_size).flatten()
        chosen = (place % vocab_size).flatten()
        tokens = torch.cat([tokens[parents], chosen[:, None]], 1)
        lengths = lengths[parents] + ~ended[parents]
        ended = ended[parents] | (chosen == eos_idx) | (lengths >= limit)
        if ended.all():
            break
    best = (scores / lengths.view_as(scores)).argmax(1)
    tokens = tokens.view(batch_size, beam_size, -1)
    special = {bos_idx, eos_idx, pad_idx}
    return [[token for token in tokens[n, b].tolist() if token not in special]
            for n, b in enumerate(best)]
