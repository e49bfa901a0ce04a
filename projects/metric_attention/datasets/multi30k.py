"""Multi30k, descriptions of images in several languages."""

import gzip
from functools import lru_cache
from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from mmstepnet.registry import DATASETS

SPECIAL_TOKENS = ('<pad>', '<s>', '</s>')
"""Padding, begin and end, ids 0, 1 and 2."""


@DATASETS.register_module()
class Multi30k(BaseDataset):
    """Multi30k: Multilingual English-German Image Descriptions.

    https://arxiv.org/abs/1605.00459, task 1 (https://github.com/multi30k):
    29,000 sentences to train with, 1,014 to validate and 1,000 to test. A
    sample is a dict of ``source`` and ``target``, token ids with begin and
    end (T,), int32, and ``reference``, the target's text. ``metainfo`` holds
    the ``tokenizer`` as JSON, which so stands in every checkpoint.

    Source and target share one tokenizer, learned from both sides of the
    training split (a reading: the implementation that the paper adapts takes
    the words of spaCy, in lower case, which BLEU on real text cannot).

    Args:
        data_root (str): Folder that holds ``data/task1/raw``, plain or
            ``.gz``: the original's checkout.
        split (str): ``'train'``, ``'val'``, ``'test_2016_flickr'``, ... .
            Defaults to ``'train'``.
        source (str): Language that is translated. Defaults to ``'en'``.
        target (str): Into which. Defaults to ``'de'``.
        vocab_size (int): Tokens of the vocabulary. Defaults to 8000.
        sort (bool): Whether to order the sentences by length, so that
            batches in this order need little padding. Defaults to False.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: Files differ in their number of lines, or the text does
            not yield so many tokens.
    """

    def __init__(
        self,
        data_root: str,
        split: str = 'train',
        source: str = 'en',
        target: str = 'de',
        vocab_size: int = 8000,
        sort: bool = False,
    ):
        self.split = split
        self.languages = (source, target)
        self.vocab_size = vocab_size
        self.sort = sort
        super().__init__(ann_file='', data_root=data_root)

    def load_data_list(self) -> list[dict]:
        """Read the split and encode it."""
        training = self._read('train')
        pairs = training if self.split == 'train' else self._read(self.split)
        tokenizer = train_tokenizer(
            tuple(text for pair in training for text in pair), self.vocab_size
        )
        self._metainfo['tokenizer'] = tokenizer.to_str()
        encoded = [
            [encoding.ids for encoding in tokenizer.encode_batch(side)]
            for side in map(list, zip(*pairs))
        ]
        samples = [
            dict(
                source=np.array(source, np.int32),
                target=np.array(target, np.int32),
                reference=reference,
            )
            for source, target, (_, reference) in zip(*encoded, pairs)
        ]
        if self.sort:
            samples.sort(key=sample_length)
        return samples

    def get_length(self, index: int) -> int:
        """Tokens of a sample, by which :class:`BucketBatchSampler` goes."""
        return sample_length(self.get_data_info(index))

    def _read(self, split: str) -> list[tuple[str, str]]:
        sides = [
            read_lines(
                Path(self.data_root, 'data', 'task1', 'raw'),
                f'{split}.{language}',
            )
            for language in self.languages
        ]
        if len(sides[0]) != len(sides[1]):
            raise ValueError(
                f'Multi30k: the two files of {split!r} must have a line for '
                f'each sentence, got {len(sides[0])} and {len(sides[1])} '
                'lines; one is cut off'
            )
        return list(zip(*sides))


def sample_length(sample: dict) -> int:
    """Tokens that a sample costs, of source and target."""
    return len(sample['source']) + len(sample['target'])


def read_lines(folder: Path, name: str) -> list[str]:
    """Lines of a file, which may be packed."""
    path = folder / name
    data = (
        path.read_bytes()
        if path.is_file()
        else gzip.decompress((folder / f'{name}.gz').read_bytes())
    )
    # Only newlines: Unicode's other separators occur within sentences.
    return [
        line.strip() for line in data.decode().removesuffix('\n').split('\n')
    ]


@lru_cache(maxsize=1)
def train_tokenizer(texts: tuple[str, ...], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE tokenizer.

    Neural Machine Translation of Rare Words with Subword Units,
    https://arxiv.org/abs/1508.07909, as the library tokenizers does it. It
    encodes any text, as it starts from the 256 bytes, and puts begin and end
    around it. Decoding gives the text back in Unicode's normal form C.

    Args:
        texts (tuple[str]): Sentences of the training split.
        vocab_size (int): Most tokens, special ones and bytes included.
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
            initial_alphabet=ByteLevel.alphabet(),
        ),
    )
    _, bos, eos = SPECIAL_TOKENS
    tokenizer.post_processor = TemplateProcessing(
        single=f'{bos} $A {eos}',
        special_tokens=[
            (token, tokenizer.token_to_id(token)) for token in (bos, eos)
        ],
    )
    return tokenizer
