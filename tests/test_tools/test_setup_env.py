"""The environment's script, with a Python that only writes down its calls."""

import sys

import pytest

from tests.programs import run_program

FAKE = '''#!/bin/sh
echo "$*" >> "$CALLS"
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
'''
NAMES = {'--only-binary': 'fetch', ' download': 'download',
         '--verbose': 'build', '--force-reinstall': 'install',
         '-e .': 'package', 'docs.txt': 'tests', 'quick.txt': 'quick'}


@pytest.fixture
def setup_env(tmp_path):
    """Calls setup_env.sh; returns the calls of Python, by what they did."""
    python, calls = tmp_path / 'venv/bin/python', tmp_path / 'calls'
    python.parent.mkdir(parents=True)
    python.write_text(FAKE)
    python.chmod(0o755)

    def run(*arguments, code=0, **env):
        calls.write_text('')
        done = run_program(
            'bash', 'tools/setup_env.sh', *arguments, check=False,
            VENV=str(tmp_path / 'venv'), STACK='onedl', FOLDER=str(tmp_path),
            CALLS=str(calls), CXX='false', **env)
        assert done.returncode == code, done.stdout + done.stderr
        return [name for line in calls.read_text().splitlines()
                for mark, name in NAMES.items() if mark in line], done.stderr

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


@pytest.mark.parametrize('stack, python, code, text', [
    ('onedl', sys.executable, 0, sys.executable),
    ('openmmlab', '/bin/false', 1, '/bin/false is not Python 3.10'),
    ('mine', '', 2, "got 'mine'")])
def test_find_python(stack, python, code, text):
    done = run_program('bash', '-c', '. tools/stack.sh; find_python',
                       check=False, STACK=stack, PYTHON=python)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
