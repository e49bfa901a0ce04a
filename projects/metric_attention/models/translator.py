"""Translation by a Transformer, for mmengine's runner."""

from numbers import Real

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModel, ModuleList
from torch import Tensor

from mmstepnet.checks import check_positive
from mmstepnet.propagation import ProjectedSources
from mmstepnet.registry import MODELS

from .search import beam_search
from .transformer import DecoderLayer, EncoderLayer, TokenEmbedding


@MODELS.register_module()
class TranslationTransformer(BaseModel):
    r"""Encoder-decoder Transformer whose attention is chosen by config.

    The same attention serves the encoder, the decoder and between them.

    All matrices start as Xavier's uniform ones, embeddings with variance
    :math:`1/C`, multiplied by :math:`\sqrt C` (Attention Is All You Need,
    Section 3.4). Tables of source and target and the output layer are
    separate, as in the implementation that the paper adapts.

    Args:
        vocab_size (int): Tokens of source and target.
        attention (dict): Type and arguments of an attention block of
            ``PROPAGATIONS``, without width and heads.
        embed_dims (int): Width C, even. Defaults to 512.
        num_heads (int): Heads. Defaults to 8.
        num_layers (int): Layers of the encoder, and of the decoder.
            Defaults to 6.
        feedforward_dims (int): Hidden width of the feed-forward parts.
            Defaults to 2048.
        dropout (float): Probability. Defaults to 0.1.
        max_length (int): Positions there are. Defaults to 256.
        beam_size (int): Hypotheses that translation keeps; 1 is greedy.
            Defaults to 1.
        pad_idx (int): Id of the padding. Defaults to 0.
        bos_idx (int): Id of the begin. Defaults to 1.
        eos_idx (int): Id of the end. Defaults to 2.
        data_preprocessor (dict, optional): Defaults to None:
            :class:`TranslationDataPreprocessor`.

    Raises:
        KeyError: There is no such attention.
        ValueError: A number is not positive, ``embed_dims`` is odd or not
            divided by ``num_heads``, or ``dropout`` is no probability.
    """

    def __init__(self,
                 vocab_size: int,
                 attention: dict,
                 embed_dims: int = 512,
                 num_heads: int = 8,
                 num_layers: int = 6,
                 feedforward_dims: int = 2048,
                 dropout: float = 0.1,
                 max_length: int = 256,
                 beam_size: int = 1,
                 pad_idx: int = 0,
                 bos_idx: int = 1,
                 eos_idx: int = 2,
                 data_preprocessor: dict | None = None):
        if data_preprocessor is None:
            data_preprocessor = dict(
                type='mmstepnet.TranslationDataPreprocessor', pad_idx=pad_idx)
        super().__init__(data_preprocessor)
        check_positive(
            'TranslationTransformer', vocab_size=vocab_size,
            embed_dims=embed_dims, num_layers=num_layers,
            feedforward_dims=feedforward_dims, max_length=max_length,
            beam_size=beam_size)
        if embed_dims % 2:
            raise ValueError('TranslationTransformer: embed_dims must be '
                             'even, for its pairs of sine and cosine, got '
                             f'{embed_dims}')
        if not isinstance(dropout, Real) or not 0 <= dropout < 1:
            raise ValueError('TranslationTransformer: dropout must be in '
                             f'[0, 1), got {dropout!r}')
        self.max_length = max_length
        self.beam_size = beam_size
        self.pad_idx, self.bos_idx, self.eos_idx = pad_idx, bos_idx, eos_idx
        embedding = (vocab_size, embed_dims, max_length, dropout, pad_idx)
        layer = (attention, embed_dims, num_heads, feedforward_dims, dropout)
        self.source_embedding = TokenEmbedding(*embedding)
        self.encoder = ModuleList(
            EncoderLayer(*layer) for _ in range(num_layers))
        self.target_embedding = TokenEmbedding(*embedding)
        self.decoder = ModuleList(
            DecoderLayer(*layer) for _ in range(num_layers))
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
        mask = (source != self.pad_idx).unsqueeze(1)
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

    def forward(self,
                source: Tensor,
                target: Tensor | None = None,
                mode: str = 'tensor') -> Tensor | dict | list[dict]:
        """Compute what ``mode`` says.

        Args:
            source (Tensor): Ids, begin and end included, padded at the end,
                int64, (N, S).
            target (Tensor, optional): The same of the target, (N, T). Needed
                by all modes but ``'predict'``.
            mode (str): ``'tensor'``: logits of the tokens after each of
                ``target``, (N, T, V). ``'loss'``: ``dict(loss=...)``, the
                mean cross-entropy over the tokens that are no padding.
                ``'predict'``: a dict for each sentence, ``tokens``, the
                translation without begin and end, and where there is a
                target ``nll`` and ``num_tokens``, the sum of its tokens'
                negative log-likelihoods and their number.

        Raises:
            ValueError: There is no such mode, or no target.
        """
        if mode not in ('tensor', 'loss', 'predict'):
            raise ValueError("TranslationTransformer: mode must be 'tensor', "
                             f"'loss' or 'predict', got {mode!r}")
        if target is None and mode != 'predict':
            raise ValueError(f'TranslationTransformer: mode {mode!r} needs a '
                             'target')
        memory, mask = self.encode(source)
        if mode == 'tensor':
            return self.output(self.decode(target, memory, mask))
        if mode == 'loss':
            nll, _ = self._token_nll(target, memory, mask)
            return dict(loss=nll.mean())
        results = [
            dict(tokens=tokens) for tokens in self.search(memory, mask)
        ]
        if target is not None:
            nll, real = self._token_nll(target, memory, mask)
            sums = torch.zeros(
                real.shape, dtype=nll.dtype, device=nll.device)
            sums = sums.masked_scatter(real, nll).sum(1).tolist()
            for result, total, count in zip(results, sums,
                                            real.sum(1).tolist()):
                result.update(nll=total, num_tokens=count)
        return results

    def _token_nll(self, target: Tensor, memory: Tensor,
                   mask: Tensor) -> tuple[Tensor, Tensor]:
        """Negative log-likelihoods (M,) of the tokens that are no padding.

        Beside them where these M stand, bool (N, T-1).
        """
        x = self.decode(target[:, :-1], memory, mask)
        expected = target[:, 1:]
        real = expected != self.pad_idx
        # Padding costs no row of the widest layer.
        logits = self.output(x[real]).float()
        return F.cross_entropy(logits, expected[real], reduction='none'), real

    def search(self, memory: Tensor, mask: Tensor) -> list[list[int]]:
        """Translate, see :func:`beam_search`.

        Each layer keeps what its attentions made of the source and of the
        tokens so far, so that each is computed once. A translation has at
        most twice the source's tokens plus ten.

        Args:
            memory (Tensor): (N, S, C).
            mask (Tensor): Bool, (N, 1, S).

        Returns:
            list[list[int]]: Tokens of each sentence.
        """
        batch_size = len(memory)
        longest = (2 * mask.sum((1, 2)) + 10).clamp(max=self.max_length)
        memory = memory.repeat_interleave(self.beam_size, 0)
        mask = mask.repeat_interleave(self.beam_size, 0)
        sources = [
            layer.cross_attention.project(memory) for layer in self.decoder
        ]
        past: list[ProjectedSources | None] = [None] * len(self.decoder)

        def step(tokens: Tensor, parents: Tensor) -> Tensor:
            seen = 0 if past[0] is None else past[0].keys.shape[-2]
            x = self.target_embedding(tokens[:, None], start=seen)
            for i, layer in enumerate(self.decoder):
                now = layer.self_attention.project(x)
                if past[i] is not None:
                    now = ProjectedSources(*(
                        torch.cat([old[parents], new], -2)
                        for old, new in zip(past[i], now)))
                past[i] = now
                x = layer(x, sources[i], mask, now)
            return self.output(x[:, 0]).float().log_softmax(-1)

        return beam_search(
            step, batch_size, bos_idx=self.bos_idx, eos_idx=self.eos_idx,
            pad_idx=self.pad_idx, max_length=longest, beam_size=self.beam_size)
