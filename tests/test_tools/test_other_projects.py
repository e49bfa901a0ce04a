"""The backbones of the pages' configs of other projects, where they run."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import HOOKS, MODELS, DefaultScope

from benchmarks.zoo import bring, draw, plain, run, tensors
from mmstepnet import TrajectoryRecorder, steps
from tests.documents import ROOT, python_snippets

RECIPES = {}
for page in 'other_projects', 'segmentation':
    for snippet in python_snippets(ROOT / 'docs' / f'{page}.md'):
        base = re.match(r"_base_ = \['(\w+)::(\S+)\.py'\]", snippet)
        if base:
            RECIPES.setdefault(base[2], (base[1], snippet))


def test_every_project_has_a_recipe():
    assert {project for project, _ in RECIPES.values()} == {
        'mmaction', 'mmocr', 'mmpose', 'mmrotate', 'mmseg', 'mmyolo'}


@pytest.mark.parametrize('name', RECIPES)
def test_backbones_compute_what_the_projects_own_do(name, tmp_path):
    """With all steps at 1, and recorded or not."""
    project, snippet = RECIPES[name]
    spec = find_spec(project)
    if spec is None:
        pytest.skip(f'needs {project}')
    bring(project)
    base = Path(spec.origin).parent / '.mim' / 'configs' / f'{name}.py'
    config = tmp_path / 'config.py'
    config.write_text(snippet.replace(f'{project}::{name}.py', str(base)))
    settings = [plain(Config.fromfile(path).model.to_dict()['backbone'])
                for path in (base, config)]
    attention = settings[1]['attention']
    assert attention['type'] == 'StepNet'
    attention['init_step'] = 1.0
    with DefaultScope.overwrite_default_scope(project):
        theirs, ours = map(MODELS.build, settings)
        HOOKS.build(dict(type='mmstepnet.StiffnessHook'))
    draw(theirs)
    missing, unexpected = ours.load_state_dict(
        theirs.state_dict(), strict=False)
    assert missing and all('step' in key for key in missing) and not unexpected
    theirs.eval()
    ours.eval()
    images, expected, error = run(theirs, settings[0])
    assert images is not None, error
    with torch.no_grad(), steps.fused(False):
        got = tensors(ours(images))
        with TrajectoryRecorder(ours) as recorder:
            recorded = tensors(ours(images))
    for a, b, c in zip(got, expected, recorded, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert torch.equal(a, c)
    assert len(recorder.trajectories().blocks) > 2
