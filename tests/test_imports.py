"""The rules of the house, read from the import statements.

An arrow never runs up, the core knows no host, nobody imports the projects.
"""

import ast
import subprocess
import sys

import pytest

from tests.documents import ROOT

FLOOR = {'checks', 'files', 'names', 'precision', 'torch_version',
         'version'}
"""Modules that every layer may import."""

BELOW = {
    'attentions': FLOOR,
    'steps': FLOOR | {'attentions'},
    'stiffness': FLOOR | {'attentions', 'steps'},
    'propagation': FLOOR,
}
"""The core's packages, and what each may import beside itself."""

INTEGRATED = {'lightning', 'torch_geometric', 'torchmetrics',
              'transformers'}
"""Libraries that ``integrations/`` stands on, a file each."""

LIBRARIES = {'torch', 'numpy', 'scipy'}
FURTHER = {f'mmstepnet/steps/tail/{name}.py': {'triton'}
           for name in ('triton', 'triton_kernels')}
FURTHER['mmstepnet/steps/files.py'] = {
    'safetensors', 'huggingface_hub', 'transformers'}


def imported(path, tree=None):
    """Full names that a file imports, in functions too."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree or ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[:len(package) - node.level + 1]
            base = '.'.join((*(start if node.level else ()),
                             *filter(None, [node.module])))
            for alias in node.names:
                # A package's submodule, or a name of a module.
                yield f'{base}.{alias.name}'


def files(*folders):
    return [path for folder in folders
            for path in sorted((ROOT / folder).rglob('*.py'))]


def test_relative_and_absolute_imports_are_read():
    path = ROOT / 'mmstepnet' / 'steps' / 'somewhere.py'
    tree = ast.parse('from . import fold\nfrom ..names import NameTable\n'
                     'import torch.nn as nn\ndef f():\n    from mmcv import x')
    assert set(imported(path, tree)) == {
        'mmstepnet.steps.fold', 'mmstepnet.names.NameTable', 'torch.nn',
        'mmcv.x'}


@pytest.mark.parametrize('package', BELOW)
def test_the_core_imports_nothing_above_it(package):
    found = files(f'mmstepnet/{package}')
    assert found
    for path in found:
        libraries = LIBRARIES | FURTHER.get(
            path.relative_to(ROOT).as_posix(), set())
        for name in imported(path):
            top, *rest = name.split('.')
            if top == 'mmstepnet':
                assert rest[0] in BELOW[package] | {package}, (path, name)
            else:
                assert top in libraries | sys.stdlib_module_names, (path,
                                                                    name)


def test_the_package_itself_imports_the_core_alone():
    allowed = FLOOR | set(BELOW)
    for path in [ROOT / 'mmstepnet' / f'{name}.py'
                 for name in ('__init__', *FLOOR)]:
        for name in imported(path):
            top, *rest = name.split('.')
            if top == 'mmstepnet':
                assert rest[0] in allowed, (path, name)
            else:
                assert top in LIBRARIES | sys.stdlib_module_names, (path, name)


def test_figures_and_numbers_do_not_mix():
    """What is drawn with is imported where it is drawn."""
    drawing = {'altair', 'vl_convert', 'jinja2'}
    for path in files('mmstepnet'):
        if 'figures' not in path.parts:
            tops = {name.split('.')[0] for name in imported(path)}
            assert not drawing & tops, path


def test_an_integration_imports_its_library_alone():
    for path in files('mmstepnet/integrations'):
        for name in imported(path):
            top, *rest = name.split('.')
            if top == 'mmstepnet':
                assert rest[0] in {*BELOW, *FLOOR, 'integrations'}, (
                    path, name)
            else:
                own = {path.stem.removesuffix('_attention')} & INTEGRATED
                assert top in LIBRARIES | sys.stdlib_module_names | own, (
                    path, name)


def test_nothing_outside_imports_projects_or_benchmarks():
    for path in files('mmstepnet', 'tools', 'configs'):
        for name in imported(path):
            assert name.split('.')[0] not in ('projects', 'benchmarks'), (
                path, name)


def test_the_library_needs_no_kit_of_jobs():
    """But the command reads checkpoints of MMEngine by it."""
    for path in files('mmstepnet'):
        if 'jobs' not in path.parts and path.parts[-2:] != (
                'cli', 'models.py'):
            for name in imported(path):
                assert not name.startswith('mmstepnet.jobs'), (path, name)


def test_modules_are_there_without_an_import_of_their_own():
    code = ('import mmstepnet; mmstepnet.export.export_onnx; '
            'assert {"insert_steps", "figures"} <= set(dir(mmstepnet))')
    subprocess.run([sys.executable, '-c', code], check=True)
