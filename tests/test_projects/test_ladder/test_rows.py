"""Rows of a ladder, and what a kill leaves of them."""

import pytest
import torch

from projects.ladder.rows import (
    append_row,
    describe_program,
    markdown,
    read_rows,
)

ROWS = dict(seed=0, word='Δt'), dict(seed=1, loss=None), dict(seed=2)


def test_rows_come_back_from_all_files(tmp_path):
    for name, row in zip(('b', 'a', 'b'), ROWS):
        append_row(tmp_path / 'deep' / f'{name}.jsonl', row)
    assert list(read_rows(tmp_path / 'deep')) == [ROWS[1], ROWS[0], ROWS[2]]
    assert list(read_rows(tmp_path / 'none')) == []


def test_a_line_that_a_kill_cut_is_no_row(tmp_path):
    """Cut at every byte, also in the middle of a letter."""
    path = tmp_path / 'rows.jsonl'
    append_row(path, ROWS[1])
    first = len(path.read_bytes())
    append_row(path, ROWS[0])
    whole = path.read_bytes()
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert list(read_rows(tmp_path)) == [ROWS[1]]
        append_row(path, ROWS[2])
        assert list(read_rows(tmp_path)) == [ROWS[1], ROWS[2]]


def test_what_json_does_not_know_is_no_row(tmp_path):
    path = tmp_path / 'rows.jsonl'
    append_row(path, ROWS[0])
    with pytest.raises(ValueError):
        append_row(path, dict(loss=float('nan')))
    assert list(read_rows(tmp_path)) == [ROWS[0]]


def test_a_row_says_with_what_it_was_made():
    program = describe_program()
    assert program['torch'] == torch.__version__
    assert torch.backends.cpu.get_cpu_capability() in program['cpu']
    commit = program['commit']
    assert commit is None or len(commit.removesuffix('-dirty')) >= 40


def test_tables():
    assert markdown(['a', 'b'], [['1', '2']]) == (
        '| a | b |\n| --- | --- |\n| 1 | 2 |\n'
    )
