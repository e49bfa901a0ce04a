"""What results say of claims: comparisons, correlations and verdicts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mmstepnet.stiffness import RankCorrelation, correlate_ranks

from .claims import (
    CLAIMS,
    CORRELATION,
    DIFFERENCE,
    LOSS,
    MARGIN,
    PAPER_SEEDS,
    PAPER_TABLES,
    RANKS,
    SHARE,
    Claim,
)
from .columns import Column
from .comparisons import (
    HELD,
    LEVEL,
    REFUTED,
    UNDECIDED,
    WAITING,
    Comparison,
    judge,
    pair,
)
from .metrics import METRICS
from .readings import DEFAULT, Reading, stiffness_by_reading


@dataclass(frozen=True)
class Finding:
    """What one column says of one claim, in one reading of NSI.

    Attributes:
        claim (Claim): The claim.
        column (Column): The column.
        reading (Reading, optional): Of claims on stiffness.
        comparisons (tuple[Comparison, ...]): Paired differences.
        lines (tuple[str, ...]): Further evidence.
        verdict (str): Empty where none is due.
    """

    claim: Claim
    column: Column
    reading: Reading | None = None
    comparisons: tuple[Comparison, ...] = ()
    lines: tuple[str, ...] = ()
    verdict: str = ''

    @property
    def evidence(self) -> tuple[str, ...]:
        """Its numbers, as text."""
        decimals = 2 if self.claim.quantity in METRICS else 4
        return (*(c.format(decimals) for c in self.comparisons), *self.lines)


def find_all(columns: Sequence[Column]) -> list[Finding]:
    """Look at every claim in every column that has results of its rows."""
    return [finding for claim in CLAIMS for column in columns
            for finding in _find(claim, column)]


def margin_of(claim: Claim) -> float | None:
    """For equivalence, which is of points; a shift is a margin already."""
    return (MARGIN if claim.quantity in METRICS and claim.kind == DIFFERENCE
            and not claim.behind else None)


def _find(claim: Claim, column: Column) -> Iterator[Finding]:
    """Findings of one claim in one column, one a reading."""
    seeds = PAPER_SEEDS if column.table in PAPER_TABLES else None
    kinds = {DIFFERENCE: _differences, RANKS: _ranks, SHARE: _shares,
             CORRELATION: _correlations}
    for finding in kinds[claim.kind](claim, column, seeds):
        rows = claim_labels(claim, column)
        column.check(list(dict.fromkeys(
            row for names in rows for row in names)))
        yield finding


def claim_labels(claim: Claim, column: Column) -> list[tuple[str, ...]]:
    """Labels of the claim's pairs, or rows, as far as they are there."""
    groups = claim.pairs or tuple((row, ) for row in claim.rows)
    found = [tuple(map(column.label, group)) for group in groups]
    return [labels for labels in found if None not in labels]


def _has_results(column: Column, labels: Iterable[tuple[str, ...]],
                 value: Callable[[dict], Any]) -> bool:
    return any(value(r) is not None for names in labels for name in names
               for r in column.results[name])


def quantity_value(name: str) -> Callable[[dict], float | None]:
    """How a metric or the loss of the last epoch is taken from a result."""
    if name == LOSS:
        return lambda result: dict(
            result.get('curves', {}).get('loss', ())).get(
                result['last']['epoch'])
    metric = METRICS[name]

    def value(result: dict) -> float | None:
        found = result['last']['metrics'].get(metric.key)
        return None if found is None else found * metric.scale
    return value


def _stiffness(key: str, reading: Reading) -> Callable[[dict], Any]:
    return lambda result: stiffness_by_reading(result, key).get(reading)


def _values(claim: Claim, column: Column, labels: Sequence[tuple[str, ...]],
            ) -> dict[Reading | None, Callable[[dict], Any]]:
    """How the quantity is taken from a result, by reading."""
    if claim.quantity in METRICS:
        value = quantity_value(claim.quantity)
        known = (claim.quantity in column.metrics
                 and _has_results(column, labels, value))
        return {None: value} if known else {}
    readings = dict.fromkeys(
        reading for names in labels for name in names
        for result in column.results[name]
        for reading in stiffness_by_reading(result, claim.quantity))
    return {r: _stiffness(claim.quantity, r) for r in readings}


def compare_pairs(claim: Claim, column: Column,
                  labels: Sequence[tuple[str, str]], value: Callable,
                  seeds: range | None) -> Iterator[Comparison]:
    """Pair the rows of a claim's labels, seed by seed."""
    shift = f' + {claim.behind:g}' if claim.behind else ''
    for ours, other in labels:
        yield pair(f'{ours} − {other}{shift}', column.results[ours],
                   column.results[other], value, seeds, claim.behind)


def _differences(claim: Claim, column: Column,
                 seeds: range | None) -> Iterator[Finding]:
    labels = claim_labels(claim, column)
    for reading, value in _values(claim, column, labels).items():
        found = tuple(compare_pairs(claim, column, labels, value, seeds))
        verdict = judge(found, margin_of(claim)) if seeds else ''
        yield Finding(claim, column, reading, found, verdict=verdict)


def model_means(claim: Claim, column: Column, reading: Reading = DEFAULT,
                seeds: range | None = None,
                ) -> tuple[dict[str, tuple[float, float]], int]:
    """TNS and accuracy of models, means over the seeds that all have.

    Args:
        claim (Claim): Whose rows are the models.
        column (Column): The column.
        reading (Reading): Of TNS. Defaults to adaptive, over the stage.
        seeds (range, optional): Which count. Defaults to None, all.

    Returns:
        tuple: By label of the row, of those that have any; and the number of
        seeds.
    """
    tns, accuracy = _stiffness('tns', reading), quantity_value('Accuracy')
    models = {row: {
        r['seed']: (tns(r), accuracy(r)) for r in column.results[row]
        if tns(r) is not None and accuracy(r) is not None
        and (seeds is None or r['seed'] in seeds)
    } for row, in claim_labels(claim, column)}
    models = {row: found for row, found in models.items() if found}
    common = set.intersection(*map(set, models.values())) if models else ()
    if not common:
        return {}, 0
    return {row: tuple(map(fmean, zip(*(found[s] for s in sorted(common)))))
            for row, found in models.items()}, len(common)


def _ranks(claim: Claim, column: Column,
           seeds: range | None) -> Iterator[Finding]:
    labels = claim_labels(claim, column)
    for reading in _values(claim, column, labels):
        means, count = model_means(claim, column, reading, seeds)
        if len(means) < 3:
            continue
        found = correlate_ranks(*zip(*means.values()), 'models')
        verdict = ''
        if seeds is not None:
            complete = len(means) == len(labels) and count == len(seeds)
            verdict = _judge_ranks(found) if complete else WAITING
        yield Finding(claim, column, reading, lines=(
            f'{found}; {len(means)} models, means over {count} '
            f'seed{"s" if count > 1 else ""}', ), verdict=verdict)


def _judge_ranks(found: RankCorrelation | str) -> str:
    if (isinstance(found, str)
            or max(found.kendall_p, found.spearman_p) >= LEVEL
            or (found.kendall > 0) != (found.spearman > 0)):
        return UNDECIDED
    return HELD if found.kendall > 0 else REFUTED


def _shares(claim: Claim, column: Column,
            seeds: range | None) -> Iterator[Finding]:
    labels = claim_labels(claim, column)
    for reading, value in _values(claim, column, labels).items():
        lines, blocks = [], set()
        for row, in labels:
            found = [r for r in column.results[row] if value(r) is not None]
            if found:
                lines.append(f'{row}: {fmean(map(value, found)):.0%} of the '
                             'degrees')
                blocks |= {len(r['stiffness']['stages']) for r in found}
        if len(lines) < 2:
            continue
        one = ', '.join(f'one stiff block of {count} is {1 / count:.0%}'
                        for count in sorted(blocks))
        yield Finding(claim, column, reading, lines=(
            'Described, not tested: of the degrees M that some image is stiff '
            'to, the share with p̂ of at most 10 %. M ends where one image in '
            f'a hundred is stiff, and the share depends on that; {one}',
            *lines))


def _correlations(claim: Claim, column: Column,
                  seeds: range | None) -> Iterator[Finding]:
    """Both panels of Fig. 9: over images block by block, and along them.

    A mean of blocks alone would hide those of either sign.
    """
    labels = claim_labels(claim, column)
    for reading, value in _values(claim, column, labels).items():
        (row, ), = labels
        found = [r for r in column.results[row] if value(r) is not None
                 and (seeds is None or r['seed'] in seeds)]
        blocks = {r['seed']: _first_stage(r['stiffness']['stages'], value(r))
                  for r in found}
        along = {r['seed']: stage for r in found
                 if (stage := _along_first_stage(r, reading))}
        planned = len(seeds or ())
        comparisons = [Comparison(
            f"{row}, first stage: −r, Pearson's over images, mean of blocks",
            tuple(-fmean(r) for r in blocks.values() if r), planned)]
        if along:
            comparisons.append(Comparison(
                f"{row}, first stage: −r, Pearson's along a trajectory, mean "
                'of images',
                tuple(-a['mean'] for a in along.values()), planned))
        lines = _sides(row, [r for r in blocks.values() if r])
        if along:
            shares = ', '.join(f'{a["negative"]:.0%}' for a in along.values())
            lines.append(f'{row}, along trajectories: r below 0 for {shares} '
                         'of the images, by seed')
        verdict = judge(comparisons, None) if seeds else ''
        yield Finding(claim, column, reading, tuple(comparisons),
                      tuple(lines), verdict)


def _sides(row: str, seeds: Sequence[list[float]]) -> list[str]:
    """How many blocks lie on either side, which their mean would hide."""
    if not seeds:
        return []
    below = ', '.join(str(sum(v < 0 for v in r)) for r in seeds)
    return [f'{row}, over images, block by block: r from '
            f'{min(map(min, seeds)):+.2f} to {max(map(max, seeds)):+.2f}, '
            f'below 0 in {below} of {max(map(len, seeds))} blocks, by seed']


def _first_stage(stages: Sequence[int],
                 values: Sequence[float | None]) -> list[float]:
    return [v for v, stage in zip(values, stages)
            if stage == stages[0] and v is not None]


def _along_first_stage(result: dict, reading: Reading) -> dict | None:
    """None before it was kept, and where the stage is too short for it."""
    found = stiffness_by_reading(result, 'along').get(reading, {})
    return found.get('stage 1')
