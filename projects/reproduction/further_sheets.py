"""Tables of a column's robustness and stiffness."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, variance

from .claims import OTHER_TNS
from .curves import (
    LEAST_VALIDATIONS,
    late_validations,
    mean_variance,
    stack_curves,
)
from .metafile import Cell
from .metrics import METRICS
from .readings import MEANS, Reading, stiffness_by_reading
from .results import summarise, validated_on_test
from .sheet import NONE, Sheet


def robustness_sheet(cells: Sequence[Cell], column: str, name: str,
                     found: dict[Path, list[dict]]) -> Sheet:
    """The second paper's robustness figure, its Section 4.2."""
    metric, rows = METRICS[name], []
    for cell in cells:
        results = found.get(cell.config, [])
        curves = stack_curves(results, metric.key)
        if curves is None:
            continue
        epochs, values = curves
        late = late_validations(epochs)
        if len(results) < 2 and not late.any():
            continue
        ends = [r['last']['metrics'][metric.key] * metric.scale
                for r in results]
        rows.append([
            cell.row,
            f'{variance(ends):.3g}' if len(ends) > 1 else NONE,
            str(len(results)),
            *((f'{mean_variance(values[:, late] * metric.scale):.3g}',
               f'{epochs[late][0]}-{epochs[late][-1]}') if late.any() else
              (NONE, NONE))
        ])
    split = 'test' if validated_on_test(found) else 'validation'
    return Sheet(
        f'Table {cells[0].table}, {column}, {name}: variance', [
            'Row', 'over seeds, last epoch', 'seeds', 'over last epochs',
            'epochs'
        ], rows, [
            'Sample variances, in squared units of the table. Over seeds: on '
            'the test data. Over the last epochs: on the '
            f'{split} data after each of these epochs, for each seed, then '
            'the mean over the seeds. At least '
            f'{LEAST_VALIDATIONS} validations are needed.'
        ])


def stiffness_sheet(cells: Sequence[Cell], column: str,
                    found: dict[Path, list[dict]]) -> Sheet:
    """What the StiffnessHook measured in the tests, a row a reading."""
    rows = []
    measured = {cell.row: [r for r in found.get(cell.config, [])
                           if r.get('stiffness')] for cell in cells}
    readings = dict.fromkeys(
        reading for results in measured.values() for result in results
        for reading in stiffness_by_reading(result, 'tns'))
    means = [mu for mu in MEANS if any(r.mu == mu for r in readings)]
    for row, results in measured.items():
        for nsi in dict.fromkeys(reading.nsi for reading in readings):
            values = [
                _mean([stiffness_by_reading(r, key).get(Reading(nsi, mu))
                       for r in results], 4)
                for key in ('tns', 'p_hat') for mu in means]
            if set(values) != {NONE}:
                few = [stiffness_by_reading(r, 'few_stiff').get(
                    Reading(nsi, 'stage')) for r in results]
                rows.append([
                    row, nsi, *values, _mean(few, 2),
                    _mean([fmean(r['stiffness']['step']) for r in results],
                          2), str(len(results))
                ])
    notes = [
        'Of the trained networks on the test images, mean ± sample standard '
        'deviation over the seeds. Adaptive NSI is ‖f‖ / ‖x_t‖. '
        'Unit NSI is ‖f ⊗ Δt‖ / ‖x_t‖. Returned NSI is '
        '‖out − x_t‖ / ‖x_t‖ with the activation. Δt is the mean step of the '
        'same blocks, channels and images.',
        'p̂ ≤ 10 %, with μ over the stage, is a share of the degrees M that '
        'some image is stiff to. M1 and M2 each end where one image in a '
        'hundred still is stiff, and the share depends on that end.'
    ]
    shown = {row[0] for row in rows}
    notes += [text for row, text in OTHER_TNS.items() if row in shown]
    return Sheet(
        f'Table {cells[0].table}, {column}: stiffness', [
            'Row', 'NSI',
            *(f'{name}, {MEANS[mu]}' for name in ('TNS', '∬p̂')
              for mu in means), 'p̂ ≤ 10 %', 'Δt', 'seeds'
        ], rows, notes, labels=2)


def _mean(values: Sequence[float | None], decimals: int) -> str:
    """Over the seeds; none where one of them lacks it."""
    if not values or None in values:
        return NONE
    return summarise(values).format(decimals)
