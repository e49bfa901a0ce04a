"""The second program of the ladder from scratch agrees with the first."""

import json
import sys

import numpy as np
import pytest

from projects.ladder import recompute, scratch
from projects.ladder.rows import read_rows
from tests.documents import ROOT, imported

SAME = dict(
    body='a', rate=0.1, dtype='bfloat16', commit='b', torch='c', cpu='d'
)
WOBBLE = (-30, 20, 10, 5, -15, 25, -20, 30, -5, -10, 15, -25)


def one_row(rung, seed, right):
    """A row with so many right answers of 10,000."""
    answers = np.repeat(np.arange(10), 1000)
    answers[: 10_000 - right] = 9
    text = (answers + ord('0')).astype('uint8').tobytes().decode()
    return SAME | dict(
        rung=rung, seed=seed, answers=text, accuracy=right / 100
    )


def write(folder, rows):
    (folder / 'rows.jsonl').write_text(
        ''.join(json.dumps(row) + '\n' for row in rows)
    )


def rows_of(bias, norms, seeds=12):
    """StepNet has this many more right answers than the others."""
    return [
        one_row(rung, seed, 8000 - less + swing * WOBBLE[seed])
        for seed in range(seeds)
        for rung, less, swing in (
            ('stepnet', 0, 0),
            ('sigmoid-bias', bias, 1),
            ('norms-start', norms, -1),
        )
    ]


def test_imports_nothing_of_the_first_program():
    path = ROOT / 'projects' / 'ladder' / 'recompute.py'
    tops = {name.split('.')[0] for name in imported(path)}
    assert tops - sys.stdlib_module_names == {'scipy'}


@pytest.mark.parametrize(
    'bias, norms, words',
    [
        (100, 30, ('ahead', 'ahead, by less than 0.5 points')),
        (-100, -30, ('behind', 'behind, by less than 0.5 points')),
        # p of the second is 0.04: enough for the last question, not for both.
        (100, 14, ('ahead', 'ahead, by less than 0.5 points')),
        (0, 14, ('worth less than 0.5 points',) * 2),
        (45, 0, ('ahead', 'worth less than 0.5 points')),
    ],
)
def test_both_programs_say_the_same(tmp_path, capsys, bias, norms, words):
    write(tmp_path, rows_of(bias, norms))
    recompute.main(['--rows', str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    table = scratch.verdicts([*read_rows(tmp_path)], is_ended=False)
    for line, row, word in zip(lines, table, words, strict=True):
        name, seeds, points, interval, _, p, verdict = row
        assert verdict == word
        assert line == (
            f'{name}, {seeds} seeds: {points} points, 97.5 % interval '
            f'{interval}, p {p}: {word}'
        )


def test_a_question_of_few_seeds_is_undecided(tmp_path, capsys):
    """Seeds that lack a main rung do not count."""
    rows = rows_of(10, 10, seeds=4)
    write(tmp_path, rows[:-1])
    with pytest.raises(SystemExit, match='3 whole seeds; .* once, after 12'):
        recompute.main(['--rows', str(tmp_path)])
    assert not capsys.readouterr().out
    recompute.main(['--rows', str(tmp_path), '--ended'])
    for line in capsys.readouterr().out.splitlines():
        assert ', 3 seeds: ' in line and line.endswith(': undecided')


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(seed=0), 'more than one row of .*norms-start'),
        (dict(commit='e'), "seed 1 .* have commit .*'b', 'e'"),
        (dict(body='e'), 'seed 1 .* have body'),
        (dict(accuracy=80.0), r'norms-start, seed 1: \d+ of 10000 .* is 80'),
    ],
)
def test_rows_that_are_not_those_of_the_plan(tmp_path, change, message):
    rows = rows_of(10, 10, seeds=2)
    rows[-1] |= change
    write(tmp_path, rows)
    with pytest.raises(SystemExit, match=message):
        recompute.main(['--rows', str(tmp_path), '--ended'])
