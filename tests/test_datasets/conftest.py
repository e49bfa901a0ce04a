from functools import partial

import pytest

from tests import programs


@pytest.fixture(scope='session')
def composer_tool():
    """tools/dataset_converters/compose_digits.py as a module."""
    return programs.load_tool('dataset_converters/compose_digits.py')


@pytest.fixture(scope='session')
def call_tool(composer_tool):
    """Call the tool with command line arguments."""
    return partial(programs.call_tool, composer_tool)


@pytest.fixture(scope='session')
def digits_root(tmp_path_factory, call_tool):
    """Folder of a small composed data set."""
    root = tmp_path_factory.mktemp('data') / 'digits_detection'
    call_tool('--out', root, '--train', 24, '--val', 30, '--seed', 5)
    return root
