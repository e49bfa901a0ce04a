import os
import stat

import pytest

from mmstepnet.files import remove_unfinished, write_whole


@pytest.mark.parametrize(
    'name',
    [
        pytest.param('file', id='a word'),
        pytest.param('n' * 255, id='a long name'),
        pytest.param('\u00e4' * 127, id='a long name of two bytes a letter'),
    ],
)
def test_writes(tmp_path, name):
    """Through a symbolic link, which stays, into folders that are made."""
    plain, link = tmp_path / 'plain', tmp_path / name
    plain.touch()
    path = tmp_path / 'new' / 'disk' / name
    link.symlink_to(path)
    for content in ('dritter \u00e4\n', b'second'):  # first to a new file
        write_whole(str(link), content)
        assert link.is_symlink()
        assert path.read_bytes() == (
            content if isinstance(content, bytes) else content.encode()
        )
    assert os.listdir(path.parent) == [name]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(
        plain.stat().st_mode
    )


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
