"""The environment that is printed is the one that the tests run in."""

from importlib import metadata

import numpy
import pytest
import torch

from mmstepnet import __version__
from mmstepnet.cli import env


def test_versions_are_those_of_the_modules():
    found = env.collect_environment()
    assert found['mmstepnet'].startswith(f'{__version__}, ')
    assert found['torch'].startswith(f'{torch.__version__}, ')
    assert found['numpy'] == numpy.__version__
    if found['mmcv ops'] == 'work':
        import mmcv
        assert f'mmcv {mmcv.__version__}' in (
            found['stack onedl'] + found['stack openmmlab'])


def test_what_is_missing_is_said_and_not_imported(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(env.metadata, 'version', nothing)
    monkeypatch.setattr(env, 'find_spec', lambda name: None)
    monkeypatch.setattr(env, 'import_module', lambda name: pytest.fail(name))
    found = env.collect_environment()
    for name in ('scipy', 'stack onedl', 'stack openmmlab', 'mmcv ops'):
        assert found[name] == 'not installed'


def test_broken_module_is_told(tmp_path, monkeypatch):
    (tmp_path / 'broken_ops.py').write_text('raise OSError("no symbol")')
    monkeypatch.syspath_prepend(tmp_path)
    assert env.try_import('broken_ops') == 'OSError: no symbol'


def test_missing_compiler_is_told(monkeypatch):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    assert env.describe_compiler() == 'no no-such-compiler'
