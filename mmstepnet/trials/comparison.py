"""What came out: numbers for other programs, a table, a sentence."""

from typing import Any

import numpy as np

from .pictures import FOLDS
from .rows import PLAN, Rows
from .rungs import QUESTIONS
from .statistics import Difference, compare_answers, holm


class Comparison:
    """Rungs that were trained and tested.

    Args:
        rows (Rows): All rows.

    Attributes:
        plan (dict): What the trial is, the first row.
        rungs (list[dict]): Of each rung its accuracy, over all pictures and
            in each fold (%), the rate that was chosen, how many numbers are
            trained, and the time of inference, where that of the first one
            is 1.
        differences (list[dict]): Both questions, then all other rungs against
            the first one: points of accuracy, the ends of the interval at
            95 %, and the verdict, which is empty where nothing was asked.
        sentence (str): What is said of the questions.
    """

    def __init__(self, rows: Rows):
        self.plan = rows[PLAN]
        names = self.plan['taken']
        costs = self.plan['costs']
        base = costs[names[0]]['inference']
        self.rungs: list[dict[str, Any]] = []
        right: dict[str, list[np.ndarray]] = {}
        for name in names:
            folds = [rows[f'{name}, fold {k}'] for k in range(FOLDS)]
            right[name] = [np.array([*row['right']]) == '1' for row in folds]
            self.rungs.append(
                dict(
                    rung=name,
                    trained=costs[name]['trained'],
                    inference=costs[name]['inference'] / base,
                    rate=folds[0]['rate'],
                    accuracy=100 * np.concatenate(right[name]).mean(),
                    folds=[100 * part.mean() for part in right[name]],
                )
            )
        asked = [pair for pair in QUESTIONS if {*pair} <= {*names}]
        others = [(name, names[0]) for name in names[1:]]
        found: dict[tuple[str, str], Difference] = {}
        for first, second in [*asked, *others]:
            found[first, second] = compare_answers(right[first], right[second])
        answered = holm([found[pair].p_value() for pair in asked])
        self.differences: list[dict[str, Any]] = []
        clauses = []
        for pair, difference in found.items():
            verdict = ''
            if pair in asked:
                is_answered = answered[asked.index(pair)]
                verdict = self._verdict(difference, is_answered)
                clause = QUESTIONS[pair].format(_describe(difference))
                if not is_answered:
                    clause += f': {verdict}'
                clauses.append(clause)
            reach = difference.reach()
            self.differences.append(
                dict(
                    first=pair[0],
                    second=pair[1],
                    points=difference.mean,
                    low=difference.mean - reach,
                    high=difference.mean + reach,
                    verdict=verdict,
                )
            )
        count = f'{self.plan["tested"]:,} pictures'
        text = '; '.join(clauses) or 'nothing was asked'
        of_pictures = self.plan['margin'] == self.plan['shown']
        if of_pictures and text.endswith(' points'):
            text += f', which is what {count} can show'
        self.sentence = f'On these {count} {text}.'

    def _verdict(self, difference: Difference, is_answered: bool) -> str:
        margin = self.plan['margin']
        if is_answered:
            return 'ahead' if difference.mean > 0 else 'behind'
        if difference.is_within(margin):
            return f'worth less than {margin:.1f} points'
        needed = difference.deciding_factor(margin) * self.plan['tested']
        rounded = float(f'{needed:.1e}')
        return f'undecided; about {rounded:,.0f} pictures would decide'

    def __str__(self) -> str:
        lines = ['rung             trained    rate  inference  accuracy, %']
        for rung in self.rungs:
            lines.append(
                '{rung:12}{trained:12,}{rate:8g}{inference:11.2f}'
                '{accuracy:13.2f}'.format_map(rung)
            )
        lines.append('\ndifference                points  95 % interval')
        for difference in self.differences:
            line = (
                '{first:>11} − {second:11}{points:+7.2f}  {low:+.2f} to '
                '{high:+.2f}  {verdict}'
            )
            lines.append(line.format_map(difference).rstrip())
        return '\n'.join([*lines, '', self.sentence])


def _describe(difference: Difference) -> str:
    """A difference and its interval, for the sentence."""
    side = 'ahead of' if difference.mean >= 0 else 'behind'
    size = abs(difference.mean)
    reach = difference.reach()
    interval = f'{size - reach:.1f} to {size + reach:.1f}'.replace('-', '−')
    return f'{size:.1f} points ({interval}) {side}'
