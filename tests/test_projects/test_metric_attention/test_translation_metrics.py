"""BLEU and perplexity against sacrebleu and the formula."""

import math

import pytest
import sacrebleu
from mmengine.logging import MMLogger

from projects.metric_attention.datasets.tokenizer import train_tokenizer
from projects.metric_attention.metrics import BLEU, Perplexity

REFERENCES = [
    'Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.',
    'Ein kleines Mädchen klettert in ein Spielhaus aus Holz.',
    'Ein Mann in einem blauen Hemd steht auf einer Leiter, putzt Fenster.',
    'Drei Männer grillen: "Wurst"!',
]
TRANSLATIONS = [
    'Zwei junge weiße Männer sind im Freien neben vielen Büschen.',
    'Ein kleines Mädchen klettert in ein Haus aus Holz.',
    'Ein mann in einem Hemd steht auf einer Leiter, putzt Fenster.',
    'Drei Männer grillen: "Wurst"!',
]


@pytest.fixture
def tokenizer():
    return train_tokenizer(REFERENCES, 300)


def feed(metric, samples, **batch):
    """In two batches, as a loop does."""
    for part in (slice(0, 3), slice(3, None)):
        metric.process({key: value[part] for key, value in batch.items()},
                       samples[part])
    return metric.evaluate(size=len(samples))


def test_bleu_equals_sacrebleu_on_the_plain_text(tokenizer, caplog):
    MMLogger.get_instance('test_bleu').addHandler(caplog.handler)
    metric = BLEU()
    metric.dataset_meta = dict(tokenizer=tokenizer.to_str())
    samples = [
        dict(tokens=tokenizer.encode(text, add_special_tokens=False).ids)
        for text in TRANSLATIONS
    ]
    scores = feed(metric, samples, reference=REFERENCES)
    expected = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES])
    assert scores == {'translation/BLEU': pytest.approx(expected.score)}
    assert 20 < expected.score < 90
    assert 'case:mixed|eff:no|tok:13a|smooth:exp|version:' in caplog.text


def test_bleu_without_tokenizer():
    metric = BLEU()
    metric.process(dict(reference=['Ein Hund.']), [dict(tokens=[5])])
    with pytest.raises(ValueError, match="metainfo\\['tokenizer'\\]"):
        metric.evaluate(size=1)


def test_perplexity_beyond_all_numbers():
    scores = feed(Perplexity(), [dict(nll=8e3, num_tokens=10)],
                  reference=[''])
    assert scores['translation/loss'] == 800
    assert scores['translation/perplexity'] == math.inf


def test_perplexity_weighs_tokens_not_sentences():
    chances = [[0.5, 0.25], [0.1], [1.0, 0.125, 0.5, 0.5], [0.2, 0.2]]
    samples = [
        dict(nll=-sum(map(math.log, c)), num_tokens=len(c)) for c in chances
    ]
    scores = feed(Perplexity(), samples, reference=[''] * 4)
    product = math.prod(map(math.prod, chances))
    assert scores['translation/perplexity'] == pytest.approx(
        product**(-1 / 9))
    assert scores['translation/loss'] == pytest.approx(-math.log(product) / 9)
