"""The environment's script, with a Python that only writes down its calls."""

import os
import sys
from itertools import islice
from shutil import which
from subprocess import PIPE, Popen

import pytest

from tests.documents import ROOT
from tests.programs import run_program

FAKE = """#!/bin/sh
echo "$OMP_NUM_THREADS $*" >> "$CALLS"
case "$*" in *"${HOLD:-nothing}"*)
    until [ -e "$FOLDER/go" ] || [ $((tries += 1)) = 100 ]; do
        sleep 0.1
    done ;;
esac
for word in "$@"; do
    [ "$last" = --dest ] && dest=$word
    [ "$last" = --wheel-dir ] && wheels=$word
    last=$word
done
case "$*" in
    *"cache dir") echo "$FOLDER/cache" ;;
    *torch.__version__*) echo torch-9.0-cp399 ;;
    *find_link*) echo https://wheels.example ;;
    *--only-binary*)
        [ "$PREBUILT" ] && mkdir -p "$wheels" && touch "$wheels/mmcv.whl" ;;
    *"pip --disable-pip-version-check download"*)
        mkdir -p "$dest/mmcv-2/mmcv/ops/csrc/common"
        tar -czf "$dest/mmcv-2.tar.gz" -C "$dest" mmcv-2 ;;
    *--verbose*)
        [ "$BROKEN" ] && echo 'a.cpp:3: error: no b' && seq 99 && exit 1
        mkdir -p "$wheels" && touch "$wheels/mmcv.whl" ;;
    *force-reinstall*) touch "$FOLDER/ops" ;;
    *"import mmcv.ops"*) [ -e "$FOLDER/ops" ] ;;
esac
"""
NAMES = {
    '--only-binary': 'fetch',
    ' download': 'download',
    '--verbose': 'build',
    '--force-reinstall': 'install',
    '-e .': 'package',
    'docs.txt': 'tests',
    'quick.txt': 'quick',
}


@pytest.fixture
def environment(tmp_path):
    """Variables under which the scripts find the Python that writes."""
    programs = tmp_path / 'venv/bin'
    programs.mkdir(parents=True)
    for name in 'python', 'ruff':
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    return dict(
        VENV=str(tmp_path / 'venv'),
        STACK='onedl',
        CXX='false',
        FOLDER=str(tmp_path),
        CALLS=str(tmp_path / 'calls'),
    )


def steps_of(calls):
    """What the calls of Python did."""
    return [
        name
        for line in calls.read_text().splitlines()
        for mark, name in NAMES.items()
        if mark in line
    ]


@pytest.fixture
def setup_env(environment, tmp_path):
    """Calls setup_env.sh; returns the steps, and what it complained of."""
    calls = tmp_path / 'calls'

    def run(*arguments, code=0, **env):
        calls.write_text('')
        done = run_program(
            'bash',
            'tools/setup_env.sh',
            *arguments,
            check=False,
            **environment,
            **env,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return steps_of(calls), done.stderr

    return run


def test_a_wheel_that_is_found_is_not_built(setup_env):
    assert setup_env('basis')[0] == ['package']
    assert setup_env('wheel', PREBUILT='1')[0] == ['fetch']
    assert setup_env('ops')[0] == ['install']
    assert setup_env('ops')[0] == []
    assert setup_env('quick')[0] == ['quick']
    assert setup_env()[0] == ['tests']
    assert setup_env()[0] == setup_env('quick')[0] == []
    assert setup_env('wheel')[0] == []


def test_else_it_is_built_and_kept(setup_env, tmp_path):
    """A build that failed goes on in the same sources."""
    done, err = setup_env('ops', code=1, BROKEN='1')
    assert done == ['package', 'fetch', 'download', 'build']
    assert err.endswith('The first error:\na.cpp:3: error: no b\n')
    assert setup_env('ops')[0] == ['fetch', 'build', 'install']
    assert not (tmp_path / 'venv' / 'mmcv').exists()
    # Another environment of this torch takes it.
    (tmp_path / 'venv' / 'ops.made').unlink()
    assert setup_env('ops')[0] == ['install']
    assert "got 'everything'" in setup_env('everything', code=2)[1]


@pytest.mark.skipif(not which('flock'), reason='needs flock')
@pytest.mark.parametrize('part', ['basis', 'quick'])
def test_two_calls_at_once_make_it_once(part, environment, tmp_path):
    """The second one waits, says for what, and goes on."""
    calls = tmp_path / 'calls'
    calls.write_text('')

    def start(part):
        return Popen(
            ['bash', 'tools/setup_env.sh', part],
            cwd=ROOT,
            stdout=PIPE,
            text=True,
            env={**os.environ, **environment, 'HOLD': '-e .', 'PREBUILT': '1'},
        )

    with start('basis') as first:
        assert 'environment' in ''.join(islice(first.stdout, 2))
        with start(part) as second:
            said = ''.join(islice(second.stdout, 2))
            (tmp_path / 'go').touch()
            second.communicate()
        first.communicate()
    assert f'another call, which makes {environment["VENV"]}' in said
    assert first.returncode == second.returncode == 0
    assert steps_of(calls) == [
        'package',
        *(['fetch', 'install', 'quick'] if part == 'quick' else []),
    ]


@pytest.mark.parametrize(
    'given, threads', [({}, '1'), (dict(OMP_NUM_THREADS='3'), '3')], ids=str
)
def test_threads_of_the_tests(
    given, threads, environment, tmp_path, monkeypatch
):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    run_program(
        'bash',
        'tools/run_tests.sh',
        **environment,
        PREBUILT='1',
        **{'OMP_NUM_THREADS': '', **given},
    )
    last = (tmp_path / 'calls').read_text().splitlines()[-1]
    assert last.startswith(f'{threads} -m pytest ')
    assert last.endswith('tests/test_imports.py')


@pytest.mark.parametrize(
    'stack, python, code, text',
    [
        ('onedl', sys.executable, 0, sys.executable),
        ('openmmlab', '/bin/false', 1, '/bin/false is not Python 3.10'),
        ('mine', '', 2, "got 'mine'"),
    ],
)
def test_find_python(stack, python, code, text):
    done = run_program(
        'bash',
        '-c',
        '. tools/stack.sh; find_python',
        check=False,
        STACK=stack,
        PYTHON=python,
    )
    assert done.returncode == code
    assert text in done.stdout + done.stderr
