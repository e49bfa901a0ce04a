"""The rules of the house, read from the import statements.

An arrow never runs up, the core knows no host, nobody imports the projects.
"""

import re
import subprocess
import sys

import pytest

from tests.documents import ROOT, files, imported

FLOOR = {
    'checks',
    'files',
    'generated',
    'messages',
    'names',
    'precision',
    'torch_version',
    'version',
}
"""Modules that every layer may import."""

CORE = {'attentions', 'tracing', 'steps', 'stiffness', 'propagation'}
BELOW = {
    'attentions': FLOOR,
    'tracing': FLOOR,
    'steps': FLOOR | {'attentions', 'tracing'},
    'stiffness': FLOOR | {'attentions', 'tracing', 'steps'},
    'propagation': FLOOR,
    'trials': FLOOR | CORE,
    'integrations': FLOOR | CORE,
    '__init__.py': FLOOR | CORE | {'trials'},
    **{f'{name}.py': FLOOR | CORE for name in FLOOR},
}
"""Rooms and modules, and what each may import beside itself."""

LIBRARIES = {'torch', 'numpy', 'scipy', 'tqdm'}
INTEGRATED = {'lightning', 'torch_geometric', 'torchmetrics', 'transformers'}
"""Libraries that ``integrations/`` stands on, a file each."""

FURTHER = {
    'triton.py': {'triton'},
    'triton_kernels.py': {'triton'},
    'scaled_kernels.py': {'triton'},
    'files.py': {'safetensors', 'huggingface_hub', 'transformers'},
}
"""More of them in ``steps/``."""


@pytest.mark.parametrize('room', sorted(BELOW))
def test_a_room_imports_what_is_below_it(room):
    """And of libraries its own, and Python's."""
    where = ROOT / 'mmstepnet' / room
    paths = [where] if where.is_file() else files(where)
    assert paths
    for path in paths:
        libraries = LIBRARIES | sys.stdlib_module_names
        if room == 'steps':
            libraries |= FURTHER.get(path.name, set())
        elif room == 'integrations':
            own = {path.stem.removesuffix('_attention')} & INTEGRATED
            libraries |= own | {'safetensors'}  # of files of steps
        elif room == 'trials':
            libraries |= {'safetensors'}
        for name in imported(path):
            top, *rest = name.split('.')
            if top == 'mmstepnet':
                assert rest[0] in BELOW[room] | {room}, (path, name)
            else:
                assert top in libraries, (path, name)


@pytest.mark.parametrize(
    'folders, exempt, names',
    [
        # What is drawn with is imported where it is drawn.
        pytest.param(
            ('mmstepnet',),
            'figures/',
            ('altair', 'vl_convert', 'jinja2'),
            id='drawing',
        ),
        pytest.param(
            ('mmstepnet', 'tools', 'configs'),
            None,
            ('projects', 'benchmarks'),
            id='projects',
        ),
        pytest.param(
            (
                'mmstepnet',
                'tools',
                'configs',
                'projects',
                'benchmarks',
                'examples',
            ),
            None,
            ('tests',),
            id='tests',
        ),
        # But the command reads checkpoints of MMEngine by it.
        pytest.param(
            ('mmstepnet',),
            'jobs/|cli/models.py',
            ('mmstepnet.jobs',),
            id='jobs',
        ),
    ],
)
def test_nobody_else_imports(folders, exempt, names):
    for path in files(*folders):
        if not exempt or not re.search(exempt, path.as_posix()):
            for name in imported(path):
                assert not any(
                    f'{name}.'.startswith(f'{top}.') for top in names
                ), (path, name)


def test_helpers_stand_in_no_test_module():
    modules = {
        '.'.join(path.relative_to(ROOT).with_suffix('').parts)
        for path in files('tests')
        if path.stem.startswith('test_')
    }
    for path in files('tests', 'benchmarks'):
        for name in imported(path):
            assert not {name, name.rpartition('.')[0]} & modules, (path, name)


def test_modules_are_there_without_an_import_of_their_own():
    code = (
        'import mmstepnet; mmstepnet.export.export_onnx; '
        'assert {"insert_steps", "figures"} <= set(dir(mmstepnet))'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
