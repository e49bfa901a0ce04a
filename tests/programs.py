"""The repository's programs, as the tests call them."""

import importlib
import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.utils import free_port

IN_PROCESS = [
    f'{loop}_dataloader.{key}'
    for loop in ('train', 'val', 'test')
    for key in ('num_workers=0', 'persistent_workers=False')
]
"""Options by which a job reads its data itself."""


def few(train, test):
    """Options of a job that trains and tests on so many samples."""
    return [
        *IN_PROCESS,
        'default_hooks.checkpoint.interval=1',
        *(
            f'{loop}_dataloader.dataset.indices={count}'
            for loop, count in (
                ('train', train),
                ('val', test),
                ('test', test),
            )
        ),
    ]


def load_tool(name):
    """A tool as a module."""
    return importlib.import_module(
        f'tools.{name.removesuffix(".py").replace("/", ".")}'
    )


def call_tool(module, *arguments):
    """Call a tool's main() with a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', [module.__name__, *map(str, arguments)])
        return module.main()


def run_program(*command, check=True, **env):
    """Run a command in a process, in the repository."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={
            'OMP_NUM_THREADS': '1',
            **os.environ,
            'PYTHON': sys.executable,
            'PORT': free_port(),
            **env,
        },
    )
    assert not check or done.returncode == 0, (
        done.stdout[-2000:] + done.stderr[-4000:]
    )
    return done


def run_tool(*command, **kwargs):
    """Run a program of Python's likewise."""
    return run_program(sys.executable, *command, **kwargs)
