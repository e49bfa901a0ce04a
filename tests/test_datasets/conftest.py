import pytest

from tests import programs


@pytest.fixture(scope='session')
def composer():
    """tools/dataset_converters/compose_digits.py as a module."""
    return programs.load_tool('dataset_converters/compose_digits.py')


@pytest.fixture(scope='session')
def digits_root(tmp_path_factory, composer):
    """Folder of a small composed data set."""
    root = tmp_path_factory.mktemp('data') / 'digits_detection'
    programs.call_tool(
        composer, '--out', root, '--train', 24, '--val', 30, '--seed', 5)
    return root
