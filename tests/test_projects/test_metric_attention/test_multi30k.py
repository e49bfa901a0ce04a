"""Multi30k's reader, its tokenizer and batches by length."""

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pytest
from mmengine.dataset import DefaultSampler

from projects.metric_attention.datasets import BucketBatchSampler
from projects.metric_attention.datasets.multi30k import Multi30k
from projects.metric_attention.datasets.tokenizer import (
    decode,
    load_tokenizer,
    train_tokenizer,
)

ARCHIVE = Path(__file__).parents[4] / 'shared/data/multi30k.tar.gz'
ENGLISH = [
    'A man in an orange hat starring at something.',
    'A Boston Terrier is running on lush green grass, in front of a fence.',
    'Two young, White males are outside near many bushes.',
    'A dog.',
    'Several men in hard hats are operating a giant pulley system.',
    'A girl in karate uniform breaking a stick with a front kick.',
]
GERMAN = [
    'Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.',
    'Ein Boston Terrier läuft über saftig-grünes Gras vor einem weißen Zaun.',
    'Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.',
    'Ein Hund.',
    'Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem.',
    'Ein Mädchen in einem Karateanzug bricht ein Brett mit einem Tritt.',
]
VOCAB = 300


def write(root, split, english, german, compress=False, form='raw',
          infix=''):
    folder = root / 'data' / 'task1' / form
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in (('en', english), ('de', german)):
        data = ''.join(f'{line}\n' for line in lines).encode()
        name = f'{split}{infix}.{language}'
        if compress:
            (folder / f'{name}.gz').write_bytes(gzip.compress(
                data, mtime=0))
        else:
            (folder / name).write_bytes(data)


@pytest.fixture
def root(tmp_path):
    write(tmp_path, 'train', ENGLISH, GERMAN)
    write(tmp_path, 'val', ENGLISH[:2], GERMAN[:2], compress=True)
    return tmp_path


def load(root, **kwargs):
    return Multi30k(str(root), vocab_size=VOCAB, **kwargs)


def test_samples_hold_the_text(root):
    from tokenizers import Tokenizer
    dataset = load(root)
    assert len(dataset) == 6
    tokenizer = Tokenizer.from_str(dataset.metainfo['tokenizer'])
    for sample, english, german in zip(dataset, ENGLISH, GERMAN):
        assert sample['reference'] == german
        for name, text in (('source', english), ('target', german)):
            ids = sample[name]
            assert ids.dtype == np.int32
            assert (ids[0], ids[-1]) == (1, 2)
            assert min(ids[1:-1]) > 2 and max(ids) < VOCAB
            assert decode(tokenizer, ids) == text


def test_compressed_files_and_the_other_direction(root):
    dataset = load(root, split='val', source='de', target='en')
    assert [sample['reference'] for sample in dataset] == ENGLISH[:2]


def test_tokenised_form(root):
    lower = [[line.lower() for line in side] for side in (ENGLISH, GERMAN)]
    write(root, 'train', *lower, form='tok', infix='.lc.norm.tok')
    dataset = load(root, form='tok')
    assert [s['reference'] for s in dataset] == lower[1]


def test_sorted_by_length(root):
    dataset = load(root, sort=True)
    lengths = [dataset.get_length(i) for i in range(6)]
    assert lengths == sorted(lengths)
    assert lengths == [len(s['source']) + len(s['target']) for s in dataset]
    assert dataset[0]['reference'] == 'Ein Hund.'


def test_only_newlines_end_a_line(root):
    """As in the original, some of whose sentences hold other separators."""
    write(root, 'val', ['One\u2028two', 'three\x85four'], ['Eins', 'Zwei'])
    (root / 'data/task1/raw/val.en.gz').unlink()
    assert len(load(root, split='val')) == 2


def test_tokenizer_knows_the_training_split_alone(root):
    """And is the same for every split."""
    whole = load(root).metainfo['tokenizer']
    assert load(root, split='val').metainfo['tokenizer'] == whole
    write(root, 'val', ['Zyzzyva zyzzyva'] * 50, ['Zyzzyva'] * 50)
    (root / 'data/task1/raw/val.en.gz').unlink()
    assert load(root, split='val').metainfo['tokenizer'] == whole


def test_tokenizer_is_kept_and_follows_its_texts(tmp_path):
    first = load_tokenizer(ENGLISH, VOCAB, tmp_path)
    file, = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    again = load_tokenizer(ENGLISH, VOCAB, tmp_path)
    assert first.to_str() == again.to_str()
    assert file.stat().st_mtime_ns == written
    load_tokenizer(GERMAN, VOCAB, tmp_path)
    load_tokenizer(ENGLISH, VOCAB - 10, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_tokenizer_encodes_what_it_never_saw():
    tokenizer = train_tokenizer(ENGLISH, VOCAB)
    # Composed and decomposed umlauts, another script, an emoji.
    for text in ('Zyzzyva “quoted” – 50 %', 'M\u0061\u0308nner', '東京 🐕',
                 'two  blanks'):
        expected = text.replace('a\u0308', 'ä')
        assert decode(tokenizer, tokenizer.encode(text).ids) == expected


def test_vocabulary_that_the_text_does_not_yield():
    with pytest.raises(ValueError, match='1 sentences yield.*not 5000'):
        train_tokenizer(['A dog.'], 5000)


@pytest.mark.parametrize('change, message', [
    (dict(split='test_2031'), 'test_2031.en.*github.com/multi30k'),
    (dict(target='nl'), r'train\.nl'),
])
def test_missing_files(root, change, message):
    with pytest.raises(FileNotFoundError, match=message):
        load(root, **change)


def test_different_numbers_of_lines(root):
    write(root, 'val', ENGLISH[:3], GERMAN[:2], compress=True)
    with pytest.raises(ValueError, match='en.gz has 3 lines.*de.gz has 2;'):
        load(root, split='val')


def test_empty_line(root):
    write(root, 'train', ENGLISH, [*GERMAN[:3], ' ', *GERMAN[4:]])
    with pytest.raises(ValueError, match='line 4 of .*train.de is empty'):
        load(root)


def test_another_encoding(root):
    path = root / 'data/task1/raw/train.de'
    path.write_bytes('\n'.join(GERMAN).encode('latin-1'))
    with pytest.raises(ValueError, match='train.de is damaged'):
        load(root)


def test_too_long(root):
    with pytest.raises(ValueError, match="of 'train' has .* max_length=12"):
        load(root, max_length=12)


def test_unknown_form(root):
    with pytest.raises(ValueError, match="got 'spacy'"):
        load(root, form='spacy')


class Lengths:
    """A data set of nothing but lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def get_length(self, index):
        return self.lengths[index]


def batches(epoch, seed=0, count=1000, **kwargs):
    lengths = np.random.default_rng(0).integers(3, 40, count).tolist()
    sampler = DefaultSampler(Lengths(lengths), shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    bucket = BucketBatchSampler(sampler, batch_size=16, **kwargs)
    found = list(bucket)
    assert len(found) == len(bucket)
    return found, lengths


def padding(found, lengths):
    cells = sum(len(b) * max(lengths[i] for i in b) for b in found)
    return 1 - sum(lengths[i] for b in found for i in b) / cells


def test_buckets_hold_every_sample_once_with_little_padding():
    found, lengths = batches(0)
    assert sorted(i for batch in found for i in batch) == list(range(1000))
    plain = [list(range(i, min(i + 16, 1000))) for i in range(0, 1000, 16)]
    assert padding(plain, lengths) > 0.4
    assert padding(found, lengths) < 0.05
    assert padding(batches(0, pool=1)[0], lengths) > 0.4
    # Short and long batches are mixed.
    means = [np.mean([lengths[i] for i in batch]) for batch in found]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5


def test_buckets_follow_seed_and_epoch():
    first, _ = batches(0)
    assert batches(0)[0] == first
    assert batches(1)[0] != first
    assert batches(0, seed=1)[0] != first


def test_buckets_drop_a_last_batch():
    found, _ = batches(0, drop_last=True)
    assert {len(batch) for batch in found} == {16}
    assert len(found) == 1000 // 16


def test_bucket_sampler_refuses():
    with pytest.raises(TypeError, match='get_length.*list has not'):
        BucketBatchSampler(DefaultSampler([1, 2]), 2)
    with pytest.raises(TypeError, match='seed and epoch.*got range'):
        BucketBatchSampler(range(4), 2)
    with pytest.raises(ValueError, match='pool must be.*got 0'):
        BucketBatchSampler(DefaultSampler(Lengths([1])), 2, pool=0)


@pytest.mark.skipif(
    not ARCHIVE.is_file(), reason='needs ../shared/data/multi30k.tar.gz')
def test_real_files(tmp_path):
    """Validation and test stand for all; training would take seconds."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter='data', members=[
            member for member in archive
            if Path(member.name).name in (
                'val.en.gz', 'val.de.gz', 'test_2016_flickr.en.gz',
                'test_2016_flickr.de.gz')
        ])
    root = tmp_path / 'multi30k'
    raw = root / 'data/task1/raw'
    for language in ('en', 'de'):
        (raw / f'train.{language}.gz').write_bytes(
            (raw / f'val.{language}.gz').read_bytes())
    from tokenizers import Tokenizer
    dataset = Multi30k(
        str(root), split='test_2016_flickr', vocab_size=1500)
    assert len(dataset) == 1000
    tokenizer = Tokenizer.from_str(dataset.metainfo['tokenizer'])
    with gzip.open(raw / 'test_2016_flickr.de.gz', 'rt',
                   encoding='utf-8', newline='\n') as file:
        lines = [line.strip() for line in file]
    for sample, line in zip(dataset, lines):
        assert sample['reference'] == line
        assert decode(tokenizer, sample['target']) == line
