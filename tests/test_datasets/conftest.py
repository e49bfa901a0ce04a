import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='session')
def composer_tool():
    """tools/dataset_converters/compose_digits.py as a module."""
    path = ROOT / 'tools' / 'dataset_converters' / 'compose_digits.py'
    spec = importlib.util.spec_from_file_location('compose_digits', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='session')
def call_tool(composer_tool):
    """Call the tool with command line arguments."""

    def call(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                sys, 'argv', ['compose_digits.py', *map(str, arguments)])
            composer_tool.main()

    return call


@pytest.fixture(scope='session')
def digits_root(tmp_path_factory, call_tool):
    """Folder of a small composed data set."""
    root = tmp_path_factory.mktemp('data') / 'digits_detection'
    call_tool('--out', root, '--train', 24, '--val', 30, '--seed', 5)
    return root
