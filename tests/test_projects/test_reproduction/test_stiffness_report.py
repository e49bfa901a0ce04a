import re
import shutil

import pytest

from tests.programs import call_tool, load_tool
from tests.test_figures.conftest import write_log, write_record


def call(*args):
    call_tool(load_tool('projects.reproduction.stiffness_report'), *args)


@pytest.fixture(scope='module')
def work_dirs(tmp_path_factory):
    paths = []
    for seed, depth in ((0, 20), (1, 20), (0, 56)):
        path = tmp_path_factory.mktemp('run')
        write_record(path / 'stiffness_val.npz', dict(type='ECA'), seed,
                     20, depth, epoch=1)
        write_log(path, {1: {'accuracy/top1': 80.0 + len(paths)}})
        paths.append(path)
    return paths


def test_page_and_pictures(work_dirs, tmp_path, capsys):
    call(*work_dirs, '--out', tmp_path,
         '--labels', 'shallow', 'shallow', 'deep', '--reading', 'unit')
    page = tmp_path / 'stiffness_report.html'
    assert str(page) in capsys.readouterr().out
    text = page.read_text('utf-8')
    for name in ('shallow (1)', 'shallow (2)', 'deep', '<b>unit</b>',
                 '2 different block structures', 'Kendall τ ='):
        assert name in text
    linked = set(re.findall(r'href="(figure_\w+\.png)"', text))
    assert linked == {p.name for p in tmp_path.glob('*.png')}
    assert {'figure_2.png', 'figure_3.png', 'figure_6.png',
            'figure_7.png'} < linked


def test_damaged_record(work_dirs, tmp_path):
    broken = tmp_path / 'stiffness_val.npz'
    shutil.copy(work_dirs[0] / 'stiffness_val.npz', broken)
    broken.write_bytes(broken.read_bytes()[:-300])
    with pytest.raises(SystemExit, match=f'{broken} is damaged'):
        call(work_dirs[1], broken,
             '--out', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_run_without_record(tmp_path):
    with pytest.raises(SystemExit, match='no stiffness_.*StiffnessHook'):
        call(tmp_path)


def test_unknown_metric(work_dirs, tmp_path):
    with pytest.raises(SystemExit, match="'mIoU'.*accuracy/top1"):
        call(*work_dirs, '--metric',
             'mIoU', '--out', tmp_path)
