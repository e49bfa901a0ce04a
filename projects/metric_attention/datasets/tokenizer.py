"""Byte-pair encoding, learned from the training text alone.

Neural Machine Translation of Rare Words with Subword Units,
https://arxiv.org/abs/1508.07909, as the library tokenizers does it.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from mmstepnet.files import write_whole

SPECIAL_TOKENS = ('<pad>', '<s>', '</s>')
"""Padding, begin and end, ids 0, 1 and 2."""


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE tokenizer.

    It encodes any text, as it starts from the 256 bytes, and puts begin and
    end around it. Decoding gives the text back in Unicode's normal form C.

    Args:
        texts (Sequence[str]): Sentences of the training split.
        vocab_size (int): Tokens, special ones and bytes included.

    Raises:
        ValueError: The text does not yield so many, or the bytes alone are
            more.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.train_from_iterator(
        texts,
        BpeTrainer(
            vocab_size=vocab_size,
            show_progress=False,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=ByteLevel.alphabet()))
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f'vocab_size: {len(texts)} sentences yield a vocabulary of '
            f'{tokenizer.get_vocab_size()} tokens, not {vocab_size}; set it '
            'to that')
    _, bos, eos = SPECIAL_TOKENS
    tokenizer.post_processor = TemplateProcessing(
        single=f'{bos} $A {eos}',
        special_tokens=[(token, tokenizer.token_to_id(token))
                        for token in (bos, eos)])
    return tokenizer


def load_tokenizer(texts: Sequence[str], vocab_size: int,
                   folder: Path) -> Tokenizer:
    """Load the tokenizer of these texts, or train it and keep it.

    Its file's name holds a hash of all that it depends on: texts, size,
    version of the library, and this file.

    Args:
        texts (Sequence[str]): See :func:`train_tokenizer`.
        vocab_size (int): See :func:`train_tokenizer`.
        folder (Path): Where the file is kept.

    Raises:
        ValueError: The file is damaged, or see :func:`train_tokenizer`.
        OSError: It cannot be kept there.
    """
    digest = hashlib.sha256()
    for part in (tokenizers.__version__, str(vocab_size),
                 Path(__file__).read_text(encoding='utf-8'), *texts):
        digest.update(part.encode() + b'\0')
    path = folder / f'bpe_{vocab_size}_{digest.hexdigest()[:16]}.json'
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no class of its own
            raise ValueError(f'{path} is damaged ({error}); delete it, and '
                             'it is learned anew') from error
    tokenizer = train_tokenizer(texts, vocab_size)
    try:
        # Whole or not at all; other processes may be at the same.
        write_whole(path, tokenizer.to_str())
    except OSError as error:
        raise OSError(f'the tokenizer cannot be kept in {str(folder)!r} '
                      f'({error}); set tokenizer_dir to a folder that can be '
                      'written') from error
    return tokenizer


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of token ids, special ones left out."""
    return tokenizer.decode(list(ids), skip_special_tokens=True).strip()
