"""Each propagation against none, S = I: the verdicts of its plan.

    python -m projects.metric_attention.no_propagation

Prints a row a comparison, of the stored rows: PLAN_NO_PROPAGATION.md.
"""

import argparse

import numpy as np
from scipy.stats import ttest_rel

from projects.reproduction.rows import quantities, read_rows

DATA = {
    'moon': ('Moon', 1, range(5, 15)),
    'mnist': ('MNIST', 1, range(1, 11)),
    'human_seg': ('human segmentation', 4, range(10)),
}
"""Its name, propagations of the compared rows, and the planned seeds."""

LEVEL = 0.05 / 9
ATTENTIONS = {'dot_product': 'dot product', 'l2': 'L2', 'metric': 'metric'}


def accuracies(name: str, seeds: range) -> np.ndarray:
    """Accuracy (%) after the last epoch, by seed."""
    rows = {
        row['seed']: quantities(row)['Accuracy'] for row in read_rows(name)
    }
    return np.array([rows[seed] for seed in seeds])


def comparisons() -> list[list[str]]:
    """Cells of each row: data, attention, accuracies, difference, verdict."""
    found = []
    for data, (label, depth, seeds) in DATA.items():
        none = accuracies(f'ipn_none_printed_{data}', seeds)
        for attention, name in ATTENTIONS.items():
            own = accuracies(f'ipn_{attention}-{depth}_printed_{data}', seeds)
            test = ttest_rel(own, none)
            low, high = test.confidence_interval()
            mean = (own - none).mean()
            # Equal differences have no deviation to be tested by.
            decided = test.pvalue < LEVEL or not np.ptp(own - none)
            found.append(
                [
                    label,
                    name,
                    f'{none.mean():.2f}',
                    f'{own.mean():.2f}',
                    f'{mean:+.2f} [{low:+.2f}, {high:+.2f}]',
                    f'{test.pvalue:.1g}',
                    'undecided'
                    if not decided or not mean
                    else 'helps'
                    if mean > 0
                    else 'hurts',
                ]
            )
    return found


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    print(
        '| data | propagation | none (%) | with it (%) | difference, 95 % '
        'interval | p | verdict |\n|---|---|---|---|---|---|---|'
    )
    for row in comparisons():
        print('| ' + ' | '.join(row) + ' |')


if __name__ == '__main__':
    main()
