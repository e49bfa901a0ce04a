"""The StepNet paper's claims, judged by our results of a smaller scale.

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939. Tests and their levels are ours.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mmstepnet.figures.ranking import RankCorrelation, correlate_ranks

from .comparisons import (
    HELD,
    LEAST_SEEDS,
    LEVEL,
    NO_RESULTS,
    NOT_HELD,
    UNDECIDABLE,
    Comparison,
    judge,
    pair,
)
from .metrics import METRICS

TABLE = 'small'
SHORT = 'CIFAR-10 JPEG, 10k images, 20 epochs'
LONG = 'CIFAR-10 JPEG, 10k images, 60 epochs'
"""Its columns."""

FURTHER_TABLES = ('digits', 'bccd')
DIGITS, BCCD = 'Digits', 'BCCD'
"""Theirs, for the first claim alone."""

PLANNED_SEEDS = {DIGITS: 5}
"""By column, where more than :data:`LEAST_SEEDS` were planned."""

PLAIN, STEPNET, SE = 'Plain', 'StepNet', 'SE'
STEPNET_1, SE_1 = 'StepNet, init_step=1', 'SE, init_step=1'
TABLE_1 = (SE, 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA', 'IEBN')
"""The attentions of the paper's Table 1."""

FIG_2 = (SE, 'FCA', 'ECA', 'SRM')
"""Those that it calls high-performance, Section 2.3."""

SGE = 'SGE, 4 groups'
"""Of its Tables 2 and 3, in the form that trains in so narrow a network."""

SGE_DIGITS = 'SGE'
"""The digits' row of it, whose default makes one group a channel."""

MODELS = (PLAIN, *TABLE_1, SGE, STEPNET)

SINGLE_INPUTS = ('StepNet, F(x_t)', 'StepNet, F(x_{t+1})',
                 'StepNet, F(x_{t+1} - x_t)')
STIFF, REST = 'StepNet in the 3 stiffest', 'StepNet in the other 3'
"""Blocks of the six that are measured."""

MARGIN = 0.5
"""Accuracy (%) by which a few blocks may fall behind all of them and still be
called enough; ours."""

Suite = dict[tuple[str, str], list[dict[str, Any]]]
"""Results of the seeds by (column, row)."""


@dataclass(frozen=True)
class Verdict:
    """What the results say of one claim.

    Attributes:
        claim (str): The claim, with its place in the paper.
        verdict (str): Held, not held, not decidable, or no results.
        test (str): The test.
        evidence (tuple[str, ...]): Its numbers.
    """

    claim: str
    verdict: str
    test: str
    evidence: tuple[str, ...]


def judge_claims(suite: Suite, warm_starts: Sequence[dict]) -> list[Verdict]:
    """Judge every claim.

    Args:
        suite (Suite): Results of :data:`TABLE` and :data:`FURTHER_TABLES`;
            rows without any may be missing.
        warm_starts (Sequence[dict]): What ``warm_start.py`` wrote, one dict
            a seed.
    """
    return [
        *_better_than_others(suite),
        _both_inputs(suite),
        _accuracy_follows_stiffness(suite),
        *_attention_is_stiffer(suite),
        _few_stiff_blocks(suite),
        _attention_falls_with_stiffness(suite),
        *_few_blocks_are_enough(suite),
        *_warm_start(warm_starts),
    ]


def accuracy(result: dict) -> float:
    """Top-1 accuracy after the last epoch, in percent."""
    return last(result, 'Accuracy')


def average_precision(result: dict) -> float:
    """COCO's AP after the last epoch, in percent."""
    return last(result, 'AP')


def last(result: dict, metric: str) -> float:
    """Look a metric of the last epoch up, in the tables' unit."""
    metric = METRICS[metric]
    return result['last']['metrics'][metric.key] * metric.scale


def stiffness(key: str) -> Callable[[dict], Any]:
    """Look a key of a result's stiffness up; None where it has none."""
    return lambda result: (result.get('stiffness') or {}).get(key)


def model_means(suite: Suite) -> dict[str, tuple[float, float]]:
    """TNS and accuracy of each model after 20 epochs, the mean over seeds.

    Over the seeds that all models have, of those with results.
    """
    models, seeds = _measured_models(suite)
    return {
        row: tuple(fmean(value(found[seed]) for seed in seeds)
                   for value in (stiffness('tns'), accuracy))
        for row, found in models.items() if seeds
    }


def _measured_models(
        suite: Suite) -> tuple[dict[str, dict[int, dict]], list[int]]:
    """Results of each model by seed, and the seeds that all models have."""
    models = {row: {r['seed']: r for r in suite.get((SHORT, row), [])
                    if stiffness('tns')(r) is not None} for row in MODELS}
    models = {row: found for row, found in models.items() if found}
    seeds = set.intersection(*map(set, models.values())) if models else ()
    return models, sorted(seeds)


def _by_seeds(claim: str, comparisons: Sequence[Comparison], test: str = '',
              decimals: int = 2) -> Verdict:
    return Verdict(
        claim, judge(comparisons),
        test or "paired t-test over seeds, Holm's correction",
        tuple(c.format(decimals) for c in comparisons))


def _pairs(suite: Suite, column: str, row: str, others: Sequence[str],
           value: Callable = accuracy) -> list[Comparison]:
    return [
        pair(f'{row} − {other}', suite.get((column, row), []),
             suite.get((column, other), []), value,
             PLANNED_SEEDS.get(column, LEAST_SEEDS)) for other in others
    ]


def _better_than_others(suite: Suite) -> Iterator[Verdict]:
    claim = '1. StepNet is more accurate than '
    for column, sge in ((SHORT, SGE), (DIGITS, SGE_DIGITS)):
        yield _by_seeds(f'{claim}the plain network and every attention '
                        f'of Table 1; {column}',
                        _pairs(suite, column, STEPNET, (PLAIN, *TABLE_1)))
        yield _by_seeds(f'{claim}SGE (Table 2, on ImageNet); {column}',
                        _pairs(suite, column, STEPNET, (sge, )))
    yield _by_seeds(f'1. StepNet has a higher AP than the plain network and '
                    f'SE (Table 3, on COCO); {BCCD}',
                    _pairs(suite, BCCD, STEPNET, (PLAIN, SE),
                           average_precision))
    yield _by_seeds(f'{claim}the plain network and SE; {LONG}',
                    _pairs(suite, LONG, STEPNET, (PLAIN, SE)))
    claim += 'plain and SE, both gates starting at 1 (ours); '
    yield _by_seeds(f'{claim}{SHORT}',
                    _pairs(suite, SHORT, STEPNET_1, (PLAIN, SE_1)))
    yield _by_seeds(f'1. StepNet with its gate starting at 1 is more accurate '
                    f'than plain and SE (ours); {LONG}',
                    _pairs(suite, LONG, STEPNET_1, (PLAIN, SE)))


def _both_inputs(suite: Suite) -> Verdict:
    return _by_seeds('2. Both inputs are better than one (Table 4)',
                     _pairs(suite, SHORT, STEPNET, SINGLE_INPUTS))


def _accuracy_follows_stiffness(suite: Suite) -> Verdict:
    means, seeds = model_means(suite), _measured_models(suite)[1]
    found = correlate_ranks([tns for tns, _ in means.values()],
                            [top1 for _, top1 in means.values()], 'models')
    verdict = UNDECIDABLE if means else NO_RESULTS
    if (len(seeds) >= LEAST_SEEDS and isinstance(found, RankCorrelation)
            and max(found.kendall_p, found.spearman_p) < LEVEL):
        signs = {found.kendall > 0, found.spearman > 0}
        if len(signs) == 1:
            verdict = HELD if signs.pop() else NOT_HELD
    return Verdict('3a. High accuracy goes with high TNS (Fig. 7)', verdict,
                   f'rank correlations of {len(means)} models, means over '
                   f'{len(seeds)} seeds', (str(found), ))


def _attention_is_stiffer(suite: Suite) -> Iterator[Verdict]:
    def larger(rows: Sequence[str]) -> list[Comparison]:
        return [
            pair(f'{row} − {PLAIN}', suite.get((SHORT, row), []),
                 suite.get((SHORT, PLAIN), []), stiffness('tns'))
            for row in rows
        ]
    yield _by_seeds('3b. Attention networks have larger TNS than the plain '
                    'one (Fig. 2)', larger(FIG_2), decimals=4)
    others = [row for row in MODELS[1:] if row not in FIG_2]
    yield _by_seeds('3b. So have those that Fig. 2 does not show (ours)',
                    larger(others), decimals=4)


def _few_stiff_blocks(suite: Suite) -> Verdict:
    """Described, not tested, for the reasons that stand as the test."""
    shares, blocks = {}, set()
    for row in MODELS:
        results = [r for r in suite.get((SHORT, row), [])
                   if stiffness('few_stiff')(r) is not None]
        if results:
            shares[row] = fmean(map(stiffness('few_stiff'), results))
            blocks |= {len(stiffness('stages')(r)) for r in results}
    return Verdict(
        '3c. The stiffness proportion p̂ is mostly at most 10 % (Fig. 6)',
        UNDECIDABLE if shares else NO_RESULTS,
        'none. ' + ''.join(
            f'One stiff block of {count} is {1 / count:.0%} of them. '
            for count in sorted(blocks)) +
        'The share of degrees M with at most 10 %, of those that an image is '
        'stiff to, depends on where M ends: here where one image in a '
        'hundred is', tuple(
            f'{row}: {share:.0%} of the degrees'
            for row, share in shares.items()))


def _attention_falls_with_stiffness(suite: Suite) -> Verdict:
    differences = []
    for result in suite.get((SHORT, SE), []):
        found = result.get('stiffness')
        if found is None:
            continue
        first = [r for r, stage in zip(found['correlation'], found['stages'])
                 if stage == found['stages'][0] and r is not None]
        if first:
            differences.append(-fmean(first))
    return _by_seeds(
        "3d. NSI and attention values correlate negatively in SENet's first "
        'stage (Fig. 9)', [
            Comparison("−r, Pearson's over images, mean of the stage's blocks",
                       tuple(differences))
        ], 't-test over seeds')


def _few_blocks_are_enough(suite: Suite) -> Iterator[Verdict]:
    yield _by_seeds('4. Stiff blocks are the ones to choose: StepNet in the 3 '
                    'stiffest of 6 blocks is better than in the other 3',
                    _pairs(suite, SHORT, STIFF, (REST, )))
    behind = pair(f'{STIFF} − {STEPNET} + {MARGIN}',
                  suite.get((SHORT, STIFF), []),
                  suite.get((SHORT, STEPNET), []), accuracy)
    shifted = Comparison(behind.name,
                         tuple(d + MARGIN for d in behind.differences))
    yield _by_seeds(
        '4. A few stiff blocks are enough (lottery ticket): no more than '
        f'{MARGIN} points behind StepNet in all blocks, and better than plain',
        [shifted, *_pairs(suite, SHORT, STIFF, (PLAIN, ))])


def _warm_start(warm_starts: Sequence[dict]) -> Iterator[Verdict]:
    claim = '5. A warm start (ours) keeps '
    kept = [
        gates[attention][1.0]['before'] - gates[None][None]['before']
        for gates in map(_gates, warm_starts)
        for attention in _attentions(warm_starts)
    ]
    at_once = _by_seeds(
        f"{claim}a pretrained network's accuracy at once, where a plain "
        'insertion loses it', _after_insertion(warm_starts, 'before'))
    if not kept:
        yield at_once
    else:
        yield Verdict(
            at_once.claim, NOT_HELD if min(kept) < 0 else at_once.verdict,
            f'{at_once.test}; and no accuracy below the plain network\'s',
            ('init_step=1 − the plain network: '
             f'{min(kept):+.2f} to {max(kept):+.2f}', *at_once.evidence))
    yield _by_seeds(
        f'{claim}its lead over a plain insertion after further training',
        _after_insertion(warm_starts, 'after'))
    yield _by_seeds(
        f'{claim}up in further training: no more than {MARGIN} points behind '
        'the plain network trained on likewise', [
            Comparison(f'{attention}, init_step=1 − plain + {MARGIN}', tuple(
                gates[attention][1.0]['after'] - gates[None][None]['after']
                + MARGIN for gates in map(_gates, warm_starts)))
            for attention in _attentions(warm_starts)
        ])


def _after_insertion(warm_starts: Sequence[dict],
                     when: str) -> list[Comparison]:
    return [
        Comparison(f'{attention}, init_step=1 − plain insertion', tuple(
            gates[attention][1.0][when] - gates[attention][None][when]
            for gates in map(_gates, warm_starts)))
        for attention in _attentions(warm_starts)
    ]


def _attentions(warm_starts: Sequence[dict]) -> list[str]:
    return [a for a in _gates(warm_starts[0]) if a] if warm_starts else []


def _gates(start: dict) -> dict[str | None, dict[float | None, dict]]:
    """Rows of a seed by attention, None for plain, and initial step."""
    gates = {}
    for row in start['rows']:
        gates.setdefault(row['attention'], {})[row['init_step']] = row
    return gates
