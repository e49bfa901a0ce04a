"""BLEU and perplexity of translations."""

from collections.abc import Sequence

import numpy as np
import sacrebleu
from mmengine import registry
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger
from tokenizers import Tokenizer

METRICS = registry.Registry(
    registry.METRICS.name, parent=registry.METRICS, scope='mmstepnet'
)
"""A node of mmengine's registry. Configs name its types as the package's."""


@METRICS.register_module()
class BLEU(BaseMetric):
    """BLEU of the translated text, by sacrebleu.

    A Call for Clarity in Reporting BLEU Scores,
    https://arxiv.org/abs/1804.08771. Tokens are decoded to plain text by the
    data set's tokenizer, and sacrebleu's own tokenisation (``13a``, in cases
    as written) applies. Its signature is logged beside the score.
    """

    default_prefix = 'translation'

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep a batch's translations and references."""
        self.results += [
            (sample['tokens'], reference)
            for sample, reference in zip(data_samples, data_batch['reference'])
        ]

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        """Score all sentences together."""
        tokenizer = Tokenizer.from_str(self.dataset_meta['tokenizer'])
        tokens, references = zip(*results)
        translations = [tokenizer.decode(list(ids)).strip() for ids in tokens]
        bleu = sacrebleu.BLEU()
        score = bleu.corpus_score(translations, [list(references)])
        MMLogger.get_current_instance().info(
            f'{score}, {bleu.get_signature()}; for example '
            f'{translations[0]!r} for {references[0]!r}'
        )
        return dict(BLEU=score.score)


@METRICS.register_module()
class Perplexity(BaseMetric):
    """Mean cross-entropy of the tokens, ``loss``, and its exponential.

    Over the tokens of all sentences that are no padding, the end included,
    each given those before it.
    """

    default_prefix = 'translation'

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Keep a batch's sums."""
        self.results += [
            (sample['nll'], sample['num_tokens']) for sample in data_samples
        ]

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        """Average over all tokens."""
        nll, count = map(sum, zip(*results))
        # NumPy's goes to infinity where math's raises.
        with np.errstate(over='ignore'):
            perplexity = float(np.exp(nll / count))
        return dict(loss=nll / count, perplexity=perplexity)
