"""Multi30k, descriptions of images in several languages."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from mmengine.dataset import BaseDataset

from mmstepnet.checks import check_choice
from mmstepnet.registry import DATASETS

from .tokenizer import load_tokenizer

FORMS = {'raw': '', 'tok': '.lc.norm.tok'}
"""Folders of task 1, and what stands between split and language there."""


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
        data_root (str): Folder that holds ``data/task1/{raw,tok}``, plain
            or ``.gz``: the original's checkout.
        split (str): ``'train'``, ``'val'``, ``'test_2016_flickr'``, ... .
            Defaults to ``'train'``.
        source (str): Language that is translated. Defaults to ``'en'``.
        target (str): Into which. Defaults to ``'de'``.
        form (str): ``'raw'``, or ``'tok'``: tokenised, in lower case.
            Defaults to ``'raw'``.
        vocab_size (int): Tokens of the vocabulary. Defaults to 8000.
        max_length (int): Most tokens of a sentence. Defaults to 256.
        sort (bool): Whether to order the sentences by length, so that
            batches in this order need little padding. Defaults to False.
        tokenizer_dir (str, optional): Where the tokenizer is kept. Defaults
            to None: ``data_root``.
        **kwargs: See :class:`mmengine.dataset.BaseDataset`.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: Files differ in their number of lines, a line is empty,
            a sentence is too long, or ``form`` is neither.
    """

    def __init__(self,
                 data_root: str,
                 split: str = 'train',
                 source: str = 'en',
                 target: str = 'de',
                 form: str = 'raw',
                 vocab_size: int = 8000,
                 max_length: int = 256,
                 sort: bool = False,
                 tokenizer_dir: str | None = None,
                 **kwargs):
        check_choice('Multi30k: form', form, FORMS)
        self.split = split
        self.languages = (source, target)
        self.form = form
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.sort = sort
        self.tokenizer_dir = Path(
            data_root if tokenizer_dir is None else tokenizer_dir)
        super().__init__(ann_file='', data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        """Read the split and encode it."""
        training = self._read('train')
        pairs = training if self.split == 'train' else self._read(self.split)
        tokenizer = load_tokenizer(
            [text for pair in training for text in pair], self.vocab_size,
            self.tokenizer_dir)
        self._metainfo['tokenizer'] = tokenizer.to_str()
        encoded = [[encoding.ids for encoding in tokenizer.encode_batch(side)]
                   for side in map(list, zip(*pairs))]
        samples = []
        for number, (source, target, (_, reference)) in enumerate(
                zip(*encoded, pairs), 1):
            longest = max(len(source), len(target))
            if longest > self.max_length:
                raise ValueError(
                    f'Multi30k: sentence {number} of {self.split!r} has '
                    f'{longest} tokens, more than max_length='
                    f'{self.max_length}; raise it, and the model\'s')
            samples.append(
                dict(
                    source=np.array(source, np.int32),
                    target=np.array(target, np.int32),
                    reference=reference))
        if self.sort:
            samples.sort(key=sample_length)
        return samples

    def get_length(self, index: int) -> int:
        """Tokens of a sample, by which :class:`BucketBatchSampler` goes."""
        return sample_length(self.get_data_info(index))

    def _read(self, split: str) -> list[tuple[str, str]]:
        folder = Path(self.data_root, 'data', 'task1', self.form)
        files = [
            _find(folder, f'{split}{FORMS[self.form]}.{language}')
            for language in self.languages
        ]
        sides = [_lines(file) for file in files]
        if len(sides[0]) != len(sides[1]):
            raise ValueError(
                'Multi30k: line n of one file translates line n of the other,'
                f' but {files[0]} has {len(sides[0])} lines and {files[1]} '
                f'has {len(sides[1])}; one is cut off or of another split')
        return list(zip(*sides))


def sample_length(sample: dict) -> int:
    """Tokens that a sample costs, of source and target."""
    return len(sample['source']) + len(sample['target'])


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f'{name}.gz'):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f'Multi30k: there is neither {name} nor {name}.gz in {folder}; '
        'data_root must hold data/task1, as the checkout of '
        'https://github.com/multi30k/dataset does')


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if path.suffix == '.gz':
            data = gzip.decompress(data)
        text = data.decode('utf-8')
    except (gzip.BadGzipFile, zlib.error, EOFError,
            UnicodeDecodeError) as error:
        raise ValueError(f'Multi30k: {path} is damaged ({error}); fetch it '
                         'again') from error
    # Only newlines: Unicode's other separators occur within sentences.
    lines = [line.strip() for line in text.removesuffix('\n').split('\n')]
    empty = [number for number, line in enumerate(lines, 1) if not line]
    if empty:
        raise ValueError(f'Multi30k: line {empty[0]} of {path} is empty; '
                         'remove it from both languages')
    return lines
