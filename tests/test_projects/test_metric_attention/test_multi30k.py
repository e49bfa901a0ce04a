"""Multi30k's reader, its tokenizer, batches by length, and the scores."""

import gzip
import math

import numpy as np
import pytest
import sacrebleu
from mmengine.dataset import DefaultSampler
from mmengine.logging import MMLogger
from tokenizers import Tokenizer

from projects.metric_attention.datasets import BucketBatchSampler
from projects.metric_attention.datasets.multi30k import (
    Multi30k,
    train_tokenizer,
)
from projects.metric_attention.models.translation_metrics import (
    BLEU,
    Perplexity,
)

ENGLISH = (
    'A man in an orange hat starring at something.',
    'A Boston Terrier is running on lush green grass, in front of a fence.',
    'A\u2028dog.',  # as some of the original's sentences
    'Several men in hard hats are operating a giant pulley system.',
)
GERMAN = (
    'Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.',
    'Ein Boston Terrier läuft über saftig-grünes Gras vor einem weißen Zaun.',
    'Ein Hund.',
    'Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem.',
)
VOCAB = 300


def write(root, split, english, german, compress=False):
    folder = root / 'data' / 'task1' / 'raw'
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in (('en', english), ('de', german)):
        data = ''.join(f'{line}\n' for line in lines).encode()
        (folder / f'{split}.{language}{".gz" * compress}').write_bytes(
            gzip.compress(data) if compress else data
        )


@pytest.fixture
def root(tmp_path):
    write(tmp_path, 'train', ENGLISH, GERMAN)
    write(tmp_path, 'val', ENGLISH[:2], GERMAN[:2], compress=True)
    return tmp_path


def load(root, **kwargs):
    return Multi30k(str(root), vocab_size=VOCAB, **kwargs)


def test_samples_hold_the_text(root):
    dataset = load(root)
    assert len(dataset) == 4
    tokenizer = Tokenizer.from_str(dataset.metainfo['tokenizer'])
    for sample, english, german in zip(dataset, ENGLISH, GERMAN):
        assert sample['reference'] == german
        for name, text in (('source', english), ('target', german)):
            ids = sample[name]
            assert ids.dtype == np.int32
            assert (ids[0], ids[-1]) == (1, 2)
            assert min(ids[1:-1]) > 2 and max(ids) < VOCAB
            assert tokenizer.decode(ids.tolist()).strip() == text
    other = load(root, split='val', source='de', target='en')
    assert [sample['reference'] for sample in other] == list(ENGLISH[:2])
    assert other.metainfo['tokenizer'] == dataset.metainfo['tokenizer']
    by_length = load(root, sort=True)
    lengths = [by_length.get_length(i) for i in range(4)]
    assert (
        lengths
        == sorted(lengths)
        == [len(s['source']) + len(s['target']) for s in by_length]
    )


def test_tokenizer_encodes_what_it_never_saw():
    tokenizer = train_tokenizer(ENGLISH, VOCAB)
    for text in ('Zyzzyva “quoted” – 50 %', 'Ma\u0308nner', '東京 🐕  two'):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids).strip() == text.replace('a\u0308', 'ä')


def test_refusals(root):
    write(root, 'val', ENGLISH[:3], GERMAN[:2], compress=True)
    with pytest.raises(ValueError, match='got 3 and 2 lines'):
        load(root, split='val')


class Lengths(list):
    """A data set of nothing but lengths."""

    get_length = list.__getitem__


def batches(epoch, seed=0, **kwargs):
    lengths = np.random.default_rng(0).integers(3, 40, 1000).tolist()
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
    assert padding(found, lengths) < 0.05
    assert padding(batches(0, pool=1)[0], lengths) > 0.4
    # Short and long batches are mixed.
    means = [np.mean([lengths[i] for i in batch]) for batch in found]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.5
    assert batches(0)[0] == found
    assert batches(1)[0] != found and batches(0, seed=1)[0] != found
    assert {len(b) for b in batches(0, drop_last=True)[0]} == {16}


def feed(metric, samples, references):
    """In two batches, as a loop does."""
    for part in (slice(0, 3), slice(3, None)):
        metric.process(dict(reference=references[part]), samples[part])
    return metric.evaluate(size=len(samples))


def test_bleu_equals_sacrebleu_on_the_plain_text(caplog):
    MMLogger.get_instance('test_bleu').addHandler(caplog.handler)
    tokenizer = train_tokenizer(GERMAN, VOCAB)
    texts = [
        text.replace('weiße', 'helle').replace('Ein ', 'ein ')
        for text in GERMAN
    ]
    metric = BLEU()
    metric.dataset_meta = dict(tokenizer=tokenizer.to_str())
    scores = feed(
        metric,
        [
            dict(tokens=tokenizer.encode(text, add_special_tokens=False).ids)
            for text in texts
        ],
        GERMAN,
    )
    expected = sacrebleu.corpus_bleu(texts, [GERMAN])
    assert scores == {'translation/BLEU': pytest.approx(expected.score)}
    assert 20 < expected.score < 95
    assert 'case:mixed|eff:no|tok:13a|smooth:exp|version:' in caplog.text


def test_perplexity_weighs_tokens_not_sentences():
    chances = [[0.5, 0.25], [0.1], [1.0, 0.125, 0.5, 0.5], [0.2, 0.2]]
    samples = [
        dict(nll=-sum(map(math.log, c)), num_tokens=len(c)) for c in chances
    ]
    scores = feed(Perplexity(), samples, [''] * 4)
    product = math.prod(map(math.prod, chances))
    assert scores['translation/perplexity'] == pytest.approx(
        product ** (-1 / 9)
    )
    assert scores['translation/loss'] == pytest.approx(-math.log(product) / 9)
    beyond = feed(Perplexity(), [dict(nll=8e3, num_tokens=10)], [''])
    assert beyond['translation/perplexity'] == math.inf
