"""What a step was worth: a CSV of all runs, the page's table, its picture.

    pip install altair pillow vl-convert-python
    python -m projects.ladder.page

It reads the rows of all trainings in which a step stands beside a constant,
writes ``runs.csv`` beside this file and ``docs/what_a_step_was_worth.png``,
and prints the tables. It ends with an error where a line of them is not on
``docs/is_it_worth_it.md``, or one of ``scratch table`` not in ``README.md``.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
from PIL import Image

from mmstepnet.figures.figures import save_charts
from mmstepnet.figures.style import chart, panels
from projects.recipes import ladder
from projects.reproduction import constant_step, moving_gates
from projects.reproduction.report import by_seed
from projects.reproduction.rows import RESULTS
from projects.reproduction.rows import read_rows as read_seeds

from . import scratch
from .networks import LITE0
from .rows import ROOT, markdown, read_rows
from .statistics import Difference, compare_over_seeds

RUNS = Path(__file__).with_name('runs.csv')
PAGE = ROOT / 'docs' / 'is_it_worth_it.md'
README = Path(__file__).with_name('README.md')
PICTURE = ROOT / 'docs' / 'what_a_step_was_worth.png'

FROZEN = {
    'resnet20': 'ResNet-20, frozen',
    'resnet32': 'ResNet-32, frozen',
    LITE0: 'EfficientNet-Lite0, frozen',
}
FROM_SCRATCH = 'ResNet-20, 5 epochs from scratch'
MOVING = 'ResNet-20, 5 epochs from scratch, gates that move'
DEEP = 'ResNet-164, 6 epochs from scratch'

NAMES = {
    'stepnet': 'StepNet',
    'layer-scale': 'a constant a channel',
    'norms': 'γ and β of the last norms',
    'layer-scale-block': 'a constant a block',
    'sigmoid-bias': 'the gate without an image, σ(b)',
    'norms-start': 'plain, γ from 0.2689',
    'norms-half': 'plain, γ from 0.5',
    'layer-scale-half': 'a constant a channel, from 0.5',
    'se-half': 'SE, from 0.5',
    'iebn-cited': 'StepNet, IEBN as cited',
    'se': 'SE',
    'head': 'the head',
    'stepnet-head': 'StepNet and the head',
    'layer-scale-head': 'a constant and the head',
    'norms-head': 'γ, β and the head',
    'frozen': 'a constant, 0.2689',
}
"""What the page calls a rung, where it is not by its own name."""

COLUMNS = (
    'setting',
    'rung',
    'seed',
    'rate',
    'accuracy',
    'loss',
    'numbers',
    'seconds',
    'commit',
    'cpu',
    'dtype',
)


REPLACED = [
    'StepNet in',
    'seeds',
    "with its gates' means: points gained (95 % interval)",
    'with BNs estimated again in both',
]
"""Columns of the table of replaced gates."""


class Line(NamedTuple):
    """A line of the table."""

    setting: str
    first: str
    second: str
    difference: Difference
    verdict: str
    """Its plan's; empty where the picture alone shows the line."""

    def cells(self) -> list[str]:
        return [
            self.setting,
            f'{self.first} − {self.second}',
            _points(self.difference),
            self.verdict,
        ]


def runs() -> Iterator[dict[str, Any]]:
    """Each run, by ``COLUMNS``; what its row does not have is left out."""
    for row in read_rows(ladder.ROWS):
        yield row | dict(setting=FROZEN[row['network']])
    for row in read_rows(scratch.ROWS):
        yield row | dict(setting=FROM_SCRATCH)
    for setting, study in ((MOVING, moving_gates), (DEEP, constant_step)):
        folder = RESULTS / study.__name__.rpartition('.')[2]
        for rung, config in study.ROWS.items():
            found = read_seeds(config, folder)
            accuracies = by_seed(found, 'Accuracy')
            for row in found:
                start = row['starts'][-1]
                yield dict(
                    setting=setting,
                    rung=rung,
                    seed=row['seed'],
                    accuracy=accuracies[row['seed']],
                    seconds=row.get('seconds'),
                    commit=start['commit'],
                    cpu=start['machine'],
                    dtype='float32',
                )


def lines() -> Iterator[Line]:
    """Each setting: what was asked, then what was tried beside it.

    The gates that moved are not in it: the ladder asks the same with a
    constant.
    """
    rows = list(read_rows(ladder.ROWS))
    for network, (first, second), difference, word in ladder.ask(rows):
        if difference is not None:
            yield _line(FROZEN[network], first, second, difference, word)
    for network, (first, second), difference in ladder.explore(rows):
        yield _line(FROZEN[network], first, second, difference, '')
    yield from _from_scratch()
    yield from _deep()


def _line(
    setting: str, first: str, second: str, difference: Difference, word: str
) -> Line:
    first, second = (NAMES.get(name, name) for name in (first, second))
    return Line(setting, first, second, difference, word)


def _from_scratch() -> Iterator[Line]:
    """Both questions, once the plan's one look is due, and what is beside."""
    rows = list(read_rows(scratch.ROWS))
    words = [line[-1] for line in scratch.verdicts(rows, is_ended=False)]
    for (first, second), word in zip(scratch.QUESTIONS, words):
        if word != 'not yet':
            seeds = list(scratch.SEEDS)
            difference = scratch.compare(rows, first, second, seeds)
            yield _line(FROM_SCRATCH, first, second, difference, word)
    for (first, second), seeds, difference in scratch.explore(rows):
        word = f'none: exploratory, {seeds} seeds'
        yield _line(FROM_SCRATCH, first, second, difference, word)


def _deep() -> Iterator[Line]:
    """Two differences that have one verdict together."""
    folder = RESULTS / 'constant_step'
    accuracies = {
        name: by_seed(read_seeds(config, folder), 'Accuracy')
        for name, config in constant_step.ROWS.items()
    }
    pairs = ('frozen', 'plain'), ('StepNet', 'frozen')
    found = []
    for first, second in pairs:
        ours, others = accuracies[first], accuracies[second]
        found.append([ours[seed] - others[seed] for seed in ours])
    word = constant_step.verdict(*found)
    for (first, second), points in zip(pairs, found):
        yield _line(DEEP, first, second, compare_over_seeds(points), word)


def replaced() -> Iterator[list[str]]:
    """What networks gain with the means of their gates, setting by setting."""
    tests = {
        setting: [
            row
            for row in read_rows(ladder.ROWS / 'replaced')
            if row['network'] == network
        ]
        for network, setting in FROZEN.items()
    }
    tests[FROM_SCRATCH] = list(read_rows(scratch.ROWS / 'replaced'))
    for setting, rows in tests.items():
        if len(rows) < 2:
            continue
        cells = [setting, str(len(rows))]
        for norms in ('', ', BN again'):
            difference = compare_over_seeds(
                [
                    row[f'channel mean{norms}'] - row[f'attention{norms}']
                    for row in rows
                ]
            )
            cells.append(_points(difference))
        yield cells


def _points(difference: Difference) -> str:
    """A difference with its interval of 95 %."""
    low, high = difference.interval()
    return f'{difference.mean:+.2f} ({low:+.2f} to {high:+.2f})'


def draw(found: list[Line]) -> alt.ConcatChart:
    """A panel for each setting, a line for each difference."""
    settings = dict.fromkeys(line.setting for line in found)
    return panels([_panel(found, setting) for setting in settings], columns=1)


def _panel(found: list[Line], setting: str) -> Any:
    own = [line for line in found if line.setting == setting]
    labels = [f'{line.first} −|{line.second}' for line in own]
    ends = [line.difference.interval() for line in own]
    # All but the deep network, whose differences are ten times as large,
    # share a scale.
    kin = [
        line for line in found if (line.setting == DEEP) == (setting == DEEP)
    ]
    values = [
        0.0,
        *(end for line in kin for end in line.difference.interval()),
    ]
    scale = alt.Scale(domain=[min(values), max(values)])
    y = alt.Y(
        'label:N',
        title=None,
        sort=labels,
        axis=alt.Axis(labelExpr="split(datum.label, '|')", labelLimit=0),
    )
    dots = chart(
        label=labels,
        points=[line.difference.mean for line in own],
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
    )
    title = 'points of accuracy; right of 0 the first is ahead'
    zero = chart(zero=[0.0]).mark_rule(color='#9aa4b2').encode(x='zero:Q')
    return alt.layer(
        zero,
        dots.mark_rule(size=2, color='#2f5fd0').encode(
            alt.X(
                'low:Q', title=title, scale=scale, axis=alt.Axis(tickMinStep=1)
            ),
            alt.X2('high:Q'),
            y,
        ),
        dots.mark_circle(size=90, opacity=1).encode(alt.X('points:Q'), y),
    ).properties(title=setting, width=300, height=44 * len(own))


def main() -> None:
    with RUNS.open('w', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction='ignore')
        writer.writeheader()
        writer.writerows(runs())
    found = list(lines())
    save_charts({PICTURE: draw(found)})
    # A few colours are enough, and a tenth of the bytes.
    with Image.open(PICTURE) as picture:
        small = picture.convert('RGB').quantize(32)
    small.save(PICTURE, optimize=True)
    titles = ['setting', 'difference', 'points (95 % interval)', 'verdict']
    asked = [line.cells() for line in found if line.verdict]
    tables = {
        PAGE: markdown(titles, asked)
        + '\n'
        + markdown(REPLACED, [*replaced()]),
        README: scratch.table(),
    }
    for page, table in tables.items():
        print(table)
        text = page.read_text('utf-8').splitlines()
        missing = [line for line in table.splitlines() if line not in text]
        if missing:
            sys.exit(f'{page} lacks lines of a table:\n' + '\n'.join(missing))


if __name__ == '__main__':
    main()
