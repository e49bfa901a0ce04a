"""The environment that is printed is the one that the tests run in."""

import numpy
import torch

from mmstepnet import __version__
from mmstepnet.cli import main


def test_versions_are_those_of_the_modules(capsys):
    assert main(['env']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f'mmstepnet {__version__}, ')
    assert f'torch {torch.__version__}'.split('+')[0] in '\n'.join(lines)
    assert f'numpy {numpy.__version__}' in lines
    assert not any('not installed' in line for line in lines)
