"""Encoder and decoder of a Transformer whose attention is exchangeable.

Attention Is All You Need, https://arxiv.org/abs/1706.03762, with
post-normalisation and sinusoidal positions, as in the implementation
(https://github.com/hyunwoongko/transformer) that the paper on
metric-attention, https://arxiv.org/abs/2412.18288, adapts.
"""

import torch
import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from mmstepnet.propagation import ProjectedSources, build_propagation


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
    frequency = 10000.0**(-torch.arange(0, dims, 2, dtype=torch.float64) /
                          dims)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


class TokenEmbedding(nn.Module):
    r"""Embedded tokens times :math:`\sqrt C`, plus positions, dropped out.

    Args:
        vocab_size (int): Tokens.
        embed_dims (int): Width C, even.
        max_length (int): Positions there are.
        dropout (float): Probability.
        padding_idx (int): Id of the padding, embedded as 0.
    """

    def __init__(self, vocab_size: int, embed_dims: int, max_length: int,
                 dropout: float, padding_idx: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, embed_dims, padding_idx)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            'positions',
            sinusoidal_positions(max_length, embed_dims),
            persistent=False)
        self.scale = embed_dims**0.5

    def init_tokens(self) -> None:
        """Draw the table, so that what is embedded has unit variance."""
        nn.init.normal_(self.tokens.weight, std=1 / self.scale)
        with torch.no_grad():
            self.tokens.weight[self.tokens.padding_idx] = 0

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Embed.

        Args:
            ids (Tensor): Int64, (N, T).
            start (int): Position of the first one. Defaults to 0.

        Returns:
            Tensor: (N, T, C).

        Raises:
            ValueError: There are fewer positions.
        """
        end = start + ids.shape[1]
        if end > len(self.positions):
            raise ValueError(
                f'a sequence of {end} tokens is longer than the model\'s '
                f'max_length {len(self.positions)}; raise max_length, or '
                'leave such sentences out')
        x = self.tokens(ids) * self.scale + self.positions[start:end]
        return self.dropout(x)


class FeedForward(nn.Sequential):
    """Two linear layers around a ReLU, (..., C) -> (..., C)."""

    def __init__(self, embed_dims: int, hidden_dims: int, dropout: float):
        super().__init__(
            nn.Linear(embed_dims, hidden_dims), nn.ReLU(inplace=True),
            nn.Dropout(dropout), nn.Linear(hidden_dims, embed_dims))


class EncoderLayer(BaseModule):
    """Self-attention and feed-forward, each added, then normalised.

    Args:
        attention (dict): Config of an :class:`AttentionBlock`.
        embed_dims (int): Width C.
        num_heads (int): Heads.
        feedforward_dims (int): Hidden width of the feed-forward part.
        dropout (float): Probability, of each part's output and of the hidden
            layer.
    """

    def __init__(self, attention: dict, embed_dims: int, num_heads: int,
                 feedforward_dims: int, dropout: float):
        super().__init__()
        self.self_attention = build_propagation(
            attention, embed_dims, num_heads=num_heads)
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


class DecoderLayer(BaseModule):
    """Causal self-attention, attention to the source, feed-forward.

    Args:
        See :class:`EncoderLayer`.
    """

    def __init__(self, attention: dict, embed_dims: int, num_heads: int,
                 feedforward_dims: int, dropout: float):
        super().__init__()
        self.self_attention = build_propagation(
            attention, embed_dims, num_heads=num_heads)
        self.norm1 = nn.LayerNorm(embed_dims)
        self.cross_attention = build_propagation(
            attention, embed_dims, num_heads=num_heads)
        self.norm2 = nn.LayerNorm(embed_dims)
        self.ffn = FeedForward(embed_dims, feedforward_dims, dropout)
        self.norm3 = nn.LayerNorm(embed_dims)
        self.dropout = nn.Dropout(dropout)

    def forward(self,
                x: Tensor,
                memory: Tensor | ProjectedSources,
                mask: Tensor,
                past: ProjectedSources | None = None) -> Tensor:
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
            if past is None else self.self_attention(x, past))
        x = self.norm1(x + self.dropout(informed))
        x = self.norm2(
            x + self.dropout(self.cross_attention(x, memory, mask=mask)))
        return self.norm3(x + self.dropout(self.ffn(x)))
