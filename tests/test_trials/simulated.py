"""Tables of answers that are drawn from known variances.

    python -m tests.test_trials.simulated

prints what the statistics make of 2,000 tables of each kind, see simulate().
A picture is answered right where a sum is positive: how easy it is, what it is
to a rung, and what a fold is to a rung.
"""

import sys

import numpy as np
from scipy import optimize, stats

from mmstepnet.trials.pictures import FOLDS
from mmstepnet.trials.statistics import (
    DISAGREEMENT,
    POWER,
    compare_answers,
    holm,
    shown_difference,
)

ACCURACY = 0.75

KINDS = {
    'folds add nothing': 0.0,
    'folds deviate by half a point': 0.5,
    'folds deviate by as much as their pictures': None,
}
"""Deviation of a rung in a fold, in points; None is that of a fold's mean over
its pictures."""


class Tables:
    """Draws answers of head, constant and StepNet.

    Args:
        pictures (int): How many are answered.
        deviation (float, optional): One of :data:`KINDS`.
        seed (int): Of the random numbers.
    """

    def __init__(self, pictures, deviation, seed=0):
        self.pictures = pictures
        self.generator = np.random.default_rng(seed)
        if deviation is None:
            in_fold = pictures / FOLDS
            deviation = 100 * (DISAGREEMENT / 2 / in_fold) ** 0.5
        threshold = stats.norm.isf(ACCURACY)
        self.of_fold = deviation / 100 / stats.norm.pdf(threshold)
        self.correlation = optimize.brentq(
            lambda rho: disagreement(threshold, rho) - DISAGREEMENT, 0.5, 0.999
        )

    def draw(self, *gaps):
        """Right answers of three rungs, by fold.

        Args:
            *gaps (float): Points by which each of the other two is ahead of
                the first rung.
        """
        size = self.pictures // FOLDS
        accuracies = ACCURACY + np.array([0.0, *gaps]) / 100
        total = (1 + self.of_fold**2) ** 0.5
        places = stats.norm.ppf(accuracies) * total
        easy = self.generator.normal(size=(FOLDS, size))
        own = self.generator.normal(size=(3, FOLDS, size))
        in_fold = self.generator.normal(size=(3, FOLDS, 1)) * self.of_fold
        sums = (
            self.correlation**0.5 * easy
            + (1 - self.correlation) ** 0.5 * own
            + in_fold
            + places[:, None, None]
        )
        return [list(rung) for rung in sums > 0]


def disagreement(threshold, correlation):
    """Share of the pictures that one of two rungs alone answers right."""
    both = stats.multivariate_normal.cdf(
        [threshold, threshold], cov=[[1, correlation], [correlation, 1]]
    )
    return 2 * (stats.norm.cdf(threshold) - both)


def ask(answers):
    """Both questions: differences, and which of them are answered."""
    head, constant, stepnet = answers
    differences = [
        compare_answers(constant, head),
        compare_answers(stepnet, constant),
    ]
    return differences, holm([d.p_value() for d in differences])


def simulate(pictures, deviation, draws):
    """What the statistics make of tables.

    Args:
        pictures (int): How many are answered.
        deviation (float, optional): One of :data:`KINDS`.
        draws (int): Tables that are drawn.

    Returns:
        tuple: Shares of tables that falsely say "ahead", and "ahead" or
        "behind"; of intervals that cover the difference; and of differences
        that are found.
    """
    tables = Tables(pictures, deviation)
    gap = shown_difference(pictures)
    ahead = false = covered = found = 0
    for _ in range(draws):
        differences, answered = ask(tables.draw(0.0, 0.0))
        means = [
            d.mean
            for d, is_answered in zip(differences, answered)
            if is_answered
        ]
        ahead += any(mean > 0 for mean in means)
        false += bool(means)
        covered += sum(abs(d.mean) < d.reach() for d in differences) / 2
        _, answered = ask(tables.draw(gap, gap))
        found += answered[0]
    return tuple(n / draws for n in (ahead, false, covered, found))


if __name__ == '__main__':
    count = int(sys.argv[1]) if sys.argv[1:] else 2000
    print(f'promised: {POWER}')
    for kind, deviation in KINDS.items():
        for pictures in (400, 1200):
            shares = simulate(pictures, deviation, count)
            print(f'{kind}, {pictures} pictures:', *shares)
