"""The rules of the house, read from the import statements.

An arrow never runs up, the core knows no host, nobody imports the projects.
"""

import ast
import re
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


def check(paths, ours, libraries):
    """Every import is of these layers, of these libraries or Python's."""
    assert paths
    for path in paths:
        for name in imported(path):
            top, *rest = name.split('.')
            if top == 'mmstepnet':
                assert rest[0] in ours, (path, name)
            else:
                assert top in libraries | sys.stdlib_module_names, (path,
                                                                    name)


@pytest.mark.parametrize('package', BELOW)
def test_the_core_imports_nothing_above_it(package):
    for path in files(f'mmstepnet/{package}'):
        check([path], BELOW[package] | {package}, LIBRARIES | FURTHER.get(
            path.relative_to(ROOT).as_posix(), set()))


def test_the_package_itself_imports_the_core_alone():
    check([ROOT / 'mmstepnet' / f'{name}.py' for name in ('__init__', *FLOOR)],
          FLOOR | set(BELOW), LIBRARIES)


def test_an_integration_imports_its_library_alone():
    for path in files('mmstepnet/integrations'):
        own = {path.stem.removesuffix('_attention')} & INTEGRATED
        check([path], {*BELOW, *FLOOR, 'integrations'},
              LIBRARIES | own | {'safetensors'})  # of files of steps


@pytest.mark.parametrize('folders, exempt, names', [
    # What is drawn with is imported where it is drawn.
    (('mmstepnet', ), 'figures/', ('altair', 'vl_convert', 'jinja2')),
    (('mmstepnet', 'tools', 'configs'), None, ('projects', 'benchmarks')),
    # But the command reads checkpoints of MMEngine by it.
    (('mmstepnet', ), 'jobs/|cli/models.py', ('mmstepnet.jobs', ))])
def test_nobody_else_imports(folders, exempt, names):
    for path in files(*folders):
        if not exempt or not re.search(exempt, path.as_posix()):
            for name in imported(path):
                assert not any(f'{name}.'.startswith(f'{top}.')
                               for top in names), (path, name)


def test_modules_are_there_without_an_import_of_their_own():
    code = ('import mmstepnet; mmstepnet.export.export_onnx; '
            'assert {"insert_steps", "figures"} <= set(dir(mmstepnet))')
    subprocess.run([sys.executable, '-c', code], check=True)
