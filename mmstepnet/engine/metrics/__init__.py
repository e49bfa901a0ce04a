from .translation import BLEU, Perplexity

__all__ = ['BLEU', 'Perplexity']
