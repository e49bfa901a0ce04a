"""The check on a GPU, as far as a machine without one can try it."""

import json
import sys
from functools import partial

import pytest
import torch

from benchmarks import gpu_check
from mmstepnet import steps
from mmstepnet.steps.tail import aten
from tests.programs import call_tool


@pytest.fixture
def call(capsys, tmp_path):
    def run(*args):
        with pytest.raises(SystemExit) as stop:
            call_tool(gpu_check, *args, '--device', 'cpu', '--quick', '--out',
                      tmp_path)
        return stop.value.code, capsys.readouterr()
    return run


@pytest.fixture
def few(monkeypatch):
    """The first checks of a part alone; the networks' take minutes."""
    def keep(part, *names):
        checks = gpu_check.PARTS[part].checks
        monkeypatch.setattr(gpu_check.PARTS[part], 'checks', lambda setting: [
            c for c in checks(setting) if c[0].startswith(names)])
    return keep


def rows(folder):
    found = json.loads((folder / 'gpu_check.json').read_text())['rows']
    return {row['check']: row for row in found}


def test_tails_pass_and_a_second_call_goes_on(call, few, tmp_path):
    few('correctness', 'tail', 'large means, 10 ')
    assert call('correctness')[0] == 0
    found = rows(tmp_path)
    assert len(found) == 20
    assert {row['verdict'] for row in found.values()} == {'passes'}
    table = (tmp_path / 'gpu_check.md').read_text()
    assert table.count('| passes |') == len(found)
    code, printed = call('correctness')
    assert code == 0 and printed.out.startswith('20 checks, 0 failed')


def test_a_path_that_is_not_taken_fails_and_is_tried_again(
        call, few, tmp_path):
    few('correctness', 'tail, float32')

    class Never(steps.fused):
        def __init__(self, mode):
            super().__init__(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, 'fused', Never)
        code, _ = call('correctness')
    assert code == 1
    assert all('NotTakenError: the fused path was taken by 0 tails, not by 1'
               in row['value'] for row in rows(tmp_path).values())
    assert call('correctness')[0] == 0


def test_wrong_values_fail(call, few, tmp_path, monkeypatch):
    few('correctness', 'tail, float32')
    forward = aten.forward

    def wrong(*args):
        out, saved = forward(*args)
        return 1.01 * out, saved
    monkeypatch.setattr(aten, 'forward', wrong)
    assert call('correctness')[0] == 1
    assert {row['verdict'] for row in rows(tmp_path).values()} == {'fails'}


def test_passes_are_timed_against_a_copy(call, few, tmp_path):
    few('launches', 'bandwidth', 'CPU time', 'device time')
    few('speed', 'metric-attention')
    call('launches', 'speed')
    for name, row in rows(tmp_path).items():
        assert row['verdict'] == 'reported', row
        assert 'Error' not in row['value'], row
        if name.startswith('bandwidth'):
            assert "of a copy's" in row['value']


def test_gates_count_a_checkpointed_step_once(call, few, tmp_path):
    few('modes', 'checkpointing')
    assert call('modes')[0] == 0
    assert len(rows(tmp_path)) == 2


@pytest.fixture
def made(monkeypatch):
    """Three checks in place of a part's; the one in the middle fails."""
    names = []

    def make(name):
        names.append(name)
        if name == 'second' and names.count(name) == 1:
            raise RuntimeError('an illegal memory access')
        return gpu_check.correctness.Outcome('1', '1', True)
    monkeypatch.setattr(gpu_check.correctness, 'checks', lambda setting: [
        (name, partial(make, name)) for name in ('first', 'second', 'third')])
    return names


def test_a_check_that_fails_ends_nothing_and_is_repeated_last(
        call, made, tmp_path):
    assert call('correctness')[0] == 1
    assert made == ['first', 'second', 'third']
    assert [row['verdict'] for row in rows(tmp_path).values()] == [
        'passes', 'fails', 'passes']
    assert 'RuntimeError: an illegal' in rows(tmp_path)['second']['value']
    assert call('correctness')[0] == 0
    assert made == ['first', 'second', 'third', 'second']


def test_a_budget_ends_between_two_checks(
        call, made, tmp_path, monkeypatch):
    code, printed = call('correctness', '--budget', 0)
    assert code == 3 and not made and '3 checks are left' in printed.out
    clock = iter((0, 59, 61))
    with monkeypatch.context() as patch:
        patch.setattr(gpu_check.time, 'monotonic', lambda: next(clock))
        code, printed = call('correctness', '--budget', 1)
    assert code == 3 and made == ['first']
    assert '2 checks are left' in printed.out
    call('correctness')
    assert made == ['first', 'second', 'third']


def test_a_check_that_breaks_cuda_starts_a_new_process(
        call, made, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        gpu_check, 'works', lambda setting: made[-1] != 'second')
    monkeypatch.setattr(
        gpu_check.os, 'execv', lambda *args: started.append(args))
    call('correctness')
    (program, command), = started
    assert program == command[0] == sys.executable
    assert command[1:4] == ['-m', 'benchmarks.gpu_check', 'correctness']
    assert command[-2:] == [str(tmp_path), '--budget=inf']
    call('correctness', '--budget', 0.5)  # what is left
    call('correctness')  # what failed, after which nothing is
    assert made == ['first', 'second', 'third', 'second']
    assert len(started) == 1


def test_results_of_another_machine_are_not_mixed(call, few, tmp_path):
    few('correctness', 'tail, folded')
    call('correctness')
    path = tmp_path / 'gpu_check.json'
    found = json.loads(path.read_text())
    found['machine']['PyTorch'] = '1.0'
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match='give another --out'):
        call('correctness')


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu(tmp_path, capsys):
    with pytest.raises(SystemExit, match='2'):
        call_tool(gpu_check, '--out', tmp_path)
    assert '--device cpu --quick' in capsys.readouterr().err


def test_parts_are_known(call):
    code, printed = call('kernels')
    assert code == 2 and 'got kernels' in printed.err
