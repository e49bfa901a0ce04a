"""What the projects need."""

import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, files, imported

DISTRIBUTIONS = dict(sklearn='scikit-learn', yaml='pyyaml')
HOSTS = {'mmengine', 'mmpretrain', 'torch', 'torchvision'}
OURS = {'mmstepnet', 'projects', 'tools'}
LIBRARY = {'numpy', 'safetensors', 'scipy'}


@pytest.mark.parametrize('project', ['metric_attention', 'reproduction'])
def test_requirements_name_what_is_imported(project):
    path = Path('projects', project, 'requirements.txt')
    tops = {
        name.split('.')[0]
        for file in files(f'projects/{project}')
        for name in imported(file)
    }
    needed = tops - sys.stdlib_module_names - HOSTS - OURS - LIBRARY
    assert {DISTRIBUTIONS.get(name, name) for name in needed} == set(
        (ROOT / path).read_text().split()
    )
    page = (
        ROOT
        / 'projects'
        / project
        / (
            'README.md'
            if project == 'metric_attention'
            else '../../docs/papers_tables.md'
        )
    ).read_text()
    assert f'pip install -r {path.as_posix()}' in page
