"""Translation by a Transformer whose attention is exchangeable.

Attention Is All You Need, https://arxiv.org/abs/1706.03762, with
post-normalisation and sinusoidal positions, as in the implementation
(https://github.com/hyunwoongko/transformer) that the paper on
metric-attention, https://arxiv.org/abs/2412.18288, adapts.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseDataPreprocessor, BaseModel
from torch import Tensor

from mmstepnet.propagation import ProjectedSources
from mmstepnet.registry import MODELS

from .ipn import build_propagation

PAD, BOS, EOS = 0, 1, 2
"""Ids of the padding, the begin and the end."""


def sinusoidal_positions(length: int, dims: int) -> Tensor:
    r"""Encode positions by sines and cosines (Section 3.5).

    .. math::
        P_{t, 2i} = \sin(t / 10000^{2i/C}), \qquad
        P_{t, 2i+1} = \cos(t / 10000^{2i/C})

    Args:
        length (int): Positions T.
        dims (int): Width C, even.

    Returns:
        Tensor: Float32, (T, C).
    """
    frequency = 10000.0 ** (
        -torch.arange(0, dims, 2, dtype=torch.float64) / dims
    )
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


class TokenEmbedding(nn.Module):
    r"""Embedded tokens times :math:`\sqrt C`, plus positions, dropped out.

    Args:
        vocab_size (int): Tokens.
        embed_dims (int): Width C, even.
        max_length (int): Positions there are.
        dropout (float): Probability.
    """

    def __init__(
        self, vocab_size: int, embed_dims: int, max_length: int, dropout: float
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, embed_dims, PAD)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            'positions',
            sinusoidal_positions(max_length, embed_dims),
            persistent=False,
        )
        self.scale = embed_dims**0.5

    def init_tokens(self) -> None:
        """Draw the table, so that what is embedded has unit variance."""
        nn.init.normal_(self.tokens.weight, std=1 / self.scale)
        with torch.no_grad():
            self.tokens.weight[PAD] = 0

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Embed ids, int64, (N, T) -> (N, T, C).

        Args:
            ids (Tensor): Int64, (N, T).
            start (int): Position of the first one. Defaults to 0.
        """
        x = (
            self.tokens(ids) * self.scale
            + self.positions[start : start + ids.shape[1]]
        )
        return self.dropout(x)


class FeedForward(nn.Sequential):
    """Two linear layers around a ReLU, (..., C) -> (..., C)."""

    def __init__(self, embed_dims: int, hidden_dims: int, dropout: float):
        super().__init__(
            nn.Linear(embed_dims, hidden_dims),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden_dims, embed_dims),
        )


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added, then normalised.

    Args:
        attention (dict): Config of an attention block.
        embed_dims (int): Width C.
        num_heads (int): Heads.
        feedforward_dims (int): Hidden width of the feed-forward part.
        dropout (float): Probability, of each part's output and of the hidden
            layer.
    """

    def __init__(
        self,
        attention: dict,
        embed_dims: int,
        num_heads: int,
        feedforward_dims: int,
        dropout: float,
    ):
        super().__init__()
        self.self_attention = build_propagation(
            attention, embed_dims, num_heads=num_heads
        )
        self.norm1 = nn.LayerNorm(embed_dims)
        self.ffn = FeedForward(embed_dims, feedforward_dims, dropout)
        self.norm2 = nn.LayerNorm(embed_dims)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the layer.

        Args:
            x (Tensor): (N, S, C).
            mask (Tensor): Bool, True at tokens that are no padding,
                (N, 1, S).

        Returns:
            Tensor: (N, S, C).
        """
        x = self.norm1(x + self.dropout(self.self_attention(x, mask=mask)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, feed-forward.

    Args:
        See :class:`EncoderLayer`.
    """

    def __init__(
        self,
        attention: dict,
        embed_dims: int,
        num_heads: int,
        feedforward_dims: int,
        dropout: float,
    ):
        super().__init__()
        self.self_attention = build_propagation(
            attention, embed_dims, num_heads=num_heads
        )
        self.norm1 = nn.LayerNorm(embed_dims)
        self.cross_attention = build_propagation(
            attention, embed_dims, num_heads=num_heads
        )
        self.norm2 = nn.LayerNorm(embed_dims)
        self.ffn = FeedForward(embed_dims, feedforward_dims, dropout)
        self.norm3 = nn.LayerNorm(embed_dims)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | ProjectedSources,
        mask: Tensor,
        past: ProjectedSources | None = None,
    ) -> Tensor:
        """Compute the layer.

        Padding of the target needs no mask: it stands at the end, where no
        earlier token sees it.

        Args:
            x (Tensor): Target tokens, (N, T, C).
            memory (Tensor | ProjectedSources): Encoded source, (N, S, C), or
                what ``cross_attention.project`` made of it.
            mask (Tensor): Bool, True at tokens of the source that are no
                padding, (N, 1, S).
            past (ProjectedSources, optional): What
                ``self_attention.project`` made of all tokens so far, x
                included, where one is decoded at a time. Defaults to None: x
                holds all tokens.

        Returns:
            Tensor: (N, T, C).
        """
        informed = (
            self.self_attention(x, is_causal=True)
            if past is None
            else self.self_attention(x, past)
        )
        x = self.norm1(x + self.dropout(informed))
        x = self.norm2(
            x + self.dropout(self.cross_attention(x, memory, mask=mask))
        )
        return self.norm3(x + self.dropout(self.ffn(x)))


@MODELS.register_module()
class TranslationDataPreprocessor(BaseDataPreprocessor):
    """Pads the token ids of a batch and moves them to the model's device."""

    def forward(self, data: dict, training: bool = False) -> dict:
        """Collate a batch.

        Args:
            data (dict): ``source`` and ``target``, lists of N arrays of ids.
            training (bool): No difference. Defaults to False.

        Returns:
            dict: ``source`` (N, S) and ``target`` (N, T), int64.
        """
        return {
            name: self.cast_data(_pad(data[name]))
            for name in ('source', 'target')
        }


def _pad(sentences: Sequence[np.ndarray]) -> Tensor:
    """Bring sentences to the length of the longest, (N, T)."""
    return nn.utils.rnn.pad_sequence(
        [torch.as_tensor(ids, dtype=torch.int64) for ids in sentences],
        batch_first=True,
        padding_value=PAD,
    )


@MODELS.register_module()
class TranslationTransformer(BaseModel):
    r"""Encoder-decoder Transformer whose attention is chosen by config.

    The same attention serves the encoder, the decoder and between them.
    Translation takes the likeliest token at each place.

    All matrices start as Xavier's uniform ones, embeddings with variance
    :math:`1/C`, multiplied by :math:`\sqrt C` (Attention Is All You Need,
    Section 3.4). Tables of source and target and the output layer are
    separate, as in the implementation that the paper adapts.

    Args:
        vocab_size (int): Tokens of source and target.
        attention (dict): An attention block of :mod:`mmstepnet.propagation`,
            its type and arguments, without width and heads.
        embed_dims (int): Width C, even. Defaults to 512.
        num_heads (int): Heads. Defaults to 8.
        num_layers (int): Layers of the encoder, and of the decoder.
            Defaults to 6.
        feedforward_dims (int): Hidden width of the feed-forward parts.
            Defaults to 2048.
        dropout (float): Probability. Defaults to 0.1.
        max_length (int): Positions there are. Defaults to 256.
    """

    def __init__(
        self,
        vocab_size: int,
        attention: dict,
        embed_dims: int = 512,
        num_heads: int = 8,
        num_layers: int = 6,
        feedforward_dims: int = 2048,
        dropout: float = 0.1,
        max_length: int = 256,
    ):
        super().__init__(dict(type='mmstepnet.TranslationDataPreprocessor'))
        self.max_length = max_length
        embedding = (vocab_size, embed_dims, max_length, dropout)
        layer = (attention, embed_dims, num_heads, feedforward_dims, dropout)
        self.source_embedding = TokenEmbedding(*embedding)
        self.encoder = nn.ModuleList(
            EncoderLayer(*layer) for _ in range(num_layers)
        )
        self.target_embedding = TokenEmbedding(*embedding)
        self.decoder = nn.ModuleList(
            DecoderLayer(*layer) for _ in range(num_layers)
        )
        self.output = nn.Linear(embed_dims, vocab_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.source_embedding.init_tokens()
        self.target_embedding.init_tokens()

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch.

        Args:
            source (Tensor): Ids, int64, (N, S).

        Returns:
            tuple[Tensor, Tensor]: Memory (N, S, C), and the mask of tokens
            that are no padding, bool, (N, 1, S).
        """
        mask = (source != PAD).unsqueeze(1)
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Decode a batch, each token by those up to it.

        Args:
            target (Tensor): Ids, int64, (N, T).
            memory (Tensor): (N, S, C).
            mask (Tensor): Bool, (N, 1, S).

        Returns:
            Tensor: (N, T, C), of which the output layer makes logits.
        """
        x = self.target_embedding(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return x

    def forward(
        self, source: Tensor, target: Tensor, mode: str = 'predict'
    ) -> dict | list[dict]:
        """Compute what ``mode`` says.

        Args:
            source (Tensor): Ids, begin and end included, padded at the end,
                int64, (N, S).
            target (Tensor): The same of the target, (N, T).
            mode (str): ``'loss'``: ``dict(loss=...)``, the mean
                cross-entropy over the tokens that are no padding.
                ``'predict'``: a dict for each sentence, ``tokens``, the
                translation without begin and end, and ``nll`` and
                ``num_tokens``, the sum of its target's negative
                log-likelihoods and their number.
        """
        memory, mask = self.encode(source)
        x = self.decode(target[:, :-1], memory, mask)
        expected = target[:, 1:]
        real = expected != PAD
        # Padding costs no row of the widest layer.
        nll = F.cross_entropy(
            self.output(x[real]).float(), expected[real], reduction='none'
        )
        if mode == 'loss':
            return dict(loss=nll.mean())
        counts = real.sum(1).tolist()
        return [
            dict(tokens=tokens, nll=own.sum().item(), num_tokens=count)
            for tokens, own, count in zip(
                self.translate(memory, mask), nll.split(counts), counts
            )
        ]

    def translate(self, memory: Tensor, mask: Tensor) -> list[list[int]]:
        """Take the likeliest token at each place.

        Each layer keeps what its attentions made of the source and of the
        tokens so far, so that each is computed once. A translation has at
        most twice the source's tokens plus ten.

        Args:
            memory (Tensor): (N, S, C).
            mask (Tensor): Bool, (N, 1, S).

        Returns:
            list[list[int]]: Tokens of each sentence.
        """
        longest = (2 * mask.sum((1, 2)) + 10).clamp(max=self.max_length)
        sources = [
            layer.cross_attention.project(memory) for layer in self.decoder
        ]
        past: list[ProjectedSources | None] = [None] * len(self.decoder)
        tokens = mask.new_full((len(memory), 1), BOS, dtype=torch.int64)
        ended = torch.zeros_like(longest, dtype=torch.bool)
        while not ended.all():
            seen = tokens.shape[1] - 1
            x = self.target_embedding(tokens[:, -1:], start=seen)
            for i, layer in enumerate(self.decoder):
                now = layer.self_attention.project(x)
                if past[i] is not None:
                    now = ProjectedSources(
                        *(torch.cat(pair, -2) for pair in zip(past[i], now))
                    )
                past[i] = now
                x = layer(x, sources[i], mask, now)
            scores = self.output(x[:, 0]).float()
            scores[:, [PAD, BOS]] = -torch.inf
            chosen = scores.argmax(1).masked_fill(ended, PAD)
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            ended = ended | (chosen == EOS) | (seen + 1 >= longest)
        return [
            [token for token in row if token > EOS] for row in tokens.tolist()
        ]
