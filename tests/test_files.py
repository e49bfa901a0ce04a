import errno
import os
import stat

import pytest

from mmstepnet.files import remove_unfinished, write_whole


def test_writes(tmp_path):
    path = tmp_path / 'new' / 'file'
    write_whole(path, b'first')
    write_whole(str(path), b'second')
    assert path.read_bytes() == b'second'
    write_whole(path, 'dritter \u00e4\n')
    assert path.read_text(encoding='utf-8') == 'dritter \u00e4\n'
    assert os.listdir(path.parent) == ['file']
    plain = tmp_path / 'plain'
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(
        plain.stat().st_mode)


def test_full_disk(tmp_path, monkeypatch):
    """What is there stays whole, and nothing is left behind."""
    path = tmp_path / 'file'
    path.write_bytes(b'old')

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left') as e:
        write_whole(path, bytes(1 << 20))
    assert e.value.errno == errno.ENOSPC
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['file']


def test_symbolic_links_stay(tmp_path):
    target, link = tmp_path / 'disk' / 'file', tmp_path / 'link'
    link.symlink_to(target)
    for content in (b'first', b'second'):  # the first to a link to nothing
        write_whole(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    assert os.listdir(target.parent) == ['file']


@pytest.mark.parametrize('name', ['n' * 255, '\u00e4' * 127])
def test_long_names(tmp_path, name):
    write_whole(tmp_path / name, b'content')
    assert (tmp_path / name).read_bytes() == b'content'
    assert os.listdir(tmp_path) == [name]


def test_remove_unfinished(tmp_path):
    """Those that were written to lately may be another job's."""
    names = ('.epoch_1.pth.a1b2.unfinished', 'epoch_1.pth', '.hidden')
    for name in names:
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    remove_unfinished(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ['.hidden', 'epoch_1.pth']
