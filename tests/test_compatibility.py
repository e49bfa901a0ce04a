from importlib import metadata

import mmcv
import pytest

from mmstepnet import compatibility
from mmstepnet.compatibility import STACKS, check_hosts


def test_this_environment_passes():
    check_hosts('mmengine', 'mmcv', 'mmpretrain')


@pytest.mark.parametrize('module, version', [(mmcv, '1.7.0'),
                                             (mmcv, '2.4.0')])
def test_versions_outside_the_range_name_the_fix(monkeypatch, module, version):
    monkeypatch.setattr(module, '__version__', version)
    with pytest.raises(
            ImportError,
            match=rf'needs {module.__name__}>=.*but {version} is installed; '
            r'install one of the pinned sets.*requirements/onedl\.txt'):
        check_hosts(module.__name__)


def test_missing_host_names_the_fix(monkeypatch):
    monkeypatch.setitem(compatibility.VERSIONS, 'mmabsent', ('1.0', '2.0'))
    with pytest.raises(ImportError, match='mmabsent.*not installed; install'):
        check_hosts('mmabsent')


def test_what_a_host_lacks_is_not_the_host(monkeypatch, tmp_path):
    (tmp_path / 'mmpresent.py').write_text('import absent_dependency')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(compatibility.VERSIONS, 'mmpresent', ('1.0', '2.0'))
    with pytest.raises(ModuleNotFoundError, match="'absent_dependency'"):
        check_hosts('mmpresent')


def test_two_stacks_over_each_other(monkeypatch):
    installed = {STACKS['onedl'][1], STACKS['openmmlab'][2]}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return '1.0'

    monkeypatch.setattr(metadata, 'version', version)
    with pytest.raises(ImportError, match='onedl-mmcv and mmdet share'):
        check_hosts('mmengine')
    installed.remove('mmdet')
    check_hosts('mmengine')
