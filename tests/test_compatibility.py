from importlib import metadata

import mmcv
import pytest

from mmstepnet import compatibility
from mmstepnet.compatibility import STACKS, check_hosts


@pytest.mark.parametrize('version', ['1.7.0', '2.4.0'])
def test_versions_outside_the_range_name_the_fix(monkeypatch, version):
    monkeypatch.setattr(mmcv, '__version__', version)
    with pytest.raises(
        ImportError,
        match=rf'needs mmcv>=.*but {version} is installed; '
        r'install one of the pinned sets.*requirements/onedl\.txt',
    ):
        check_hosts('mmcv')


def test_what_a_host_lacks_is_not_the_host(monkeypatch, tmp_path):
    monkeypatch.setitem(compatibility.VERSIONS, 'mmtoday', ('1.0', '2.0'))
    with pytest.raises(ImportError, match='mmtoday.*not installed; install'):
        check_hosts('mmtoday')
    (tmp_path / 'mmtoday.py').write_text('import absent_dependency')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="'absent_dependency'"):
        check_hosts('mmtoday')


def test_two_stacks_over_each_other(monkeypatch):
    installed = {STACKS['onedl'][1], STACKS['openmmlab'][2]}
    monkeypatch.setattr(
        metadata,
        'distributions',
        lambda name: [name] if name in installed else [],
    )
    with pytest.raises(ImportError, match='onedl-mmcv and mmdet share'):
        check_hosts('mmengine')
    installed.remove('mmdet')
    check_hosts('mmengine')
