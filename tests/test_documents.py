"""README and docs: snippets run, links and commands lead somewhere.

The config over MMSegmentation is trained by test_tools/test_hosts.py;
those over projects that are not installed are left out.
"""

import ast
import re
import runpy
from importlib.util import find_spec
from unicodedata import east_asian_width

import pytest
import torch

import mmstepnet
from tests.documents import PAGES, READMES, ROOT, headings, snippets


def name_page(page):
    return page.relative_to(ROOT).as_posix()


def is_program(snippet):
    return re.search(r'^(import|from) ', snippet, re.MULTILINE)


PROGRAMS = {
    path: list(filter(is_program, snippets(path, 'python')))
    for path in PAGES
    if path != READMES[1]
}
CONFIGS = [
    pytest.param(snippet, id=f'{path.name}-{number}')
    for path in PROGRAMS  # the second README's code is that of the first
    for number, snippet in enumerate(snippets(path, 'python'))
    if not is_program(snippet)
    and 'mmseg::' not in snippet
    and all(map(find_spec, re.findall(r"\['(\w+)::", snippet)))
]


def columns(line):
    return sum(2 if east_asian_width(c) in 'WF' else 1 for c in line)


@pytest.mark.parametrize('readme', READMES, ids=name_page)
def test_readme_is_short(readme):
    lines = readme.read_text('utf-8').splitlines()
    assert len(lines) <= 120
    assert max(map(columns, lines)) <= 120


def test_readmes_show_the_same_code():
    first, second = (
        [ast.dump(ast.parse(snippet)) for snippet in snippets(path, 'python')]
        for path in READMES
    )
    assert first == second
    first, second = (
        [re.sub(r'\s*#.*', '', snippet) for snippet in snippets(path, 'bash')]
        for path in READMES
    )
    assert first == second


@pytest.mark.parametrize(
    'page', [p for p in PROGRAMS if PROGRAMS[p]], ids=name_page
)
def test_programs_run(page, tmp_path, monkeypatch):
    """One after the other, as a reader of the page runs them."""
    monkeypatch.chdir(tmp_path)
    names = {'__name__': page.name}
    for snippet in PROGRAMS[page]:
        if any(
            words in snippet and not find_spec(library)
            for library, words in (
                ('transformers', 'transformers import'),
                ('torch_geometric', 'integrations.torch_geometric'),
                ('peft', 'import peft'),
                ('peft', 'peft.PeftModel'),
                ('accelerate', 'TrainingArguments'),
            )
        ):
            continue  # those that follow do without
        if 'ultralytics' in snippet:  # which needs pictures, and the net
            continue
        for library in ('mmpretrain', 'timm', 'torchvision'):
            if library in snippet.replace('mmstepnet.models', 'mmpretrain'):
                pytest.importorskip(library)
        # Weights would have to be downloaded.
        snippet = snippet.replace('pretrained=True', 'pretrained=False')
        exec(compile(snippet, page.name, 'exec'), names)


@pytest.mark.parametrize('snippet', CONFIGS)
def test_config_builds(snippet, tmp_path):
    pytest.importorskip('mmpretrain', reason='needs OpenMMLab')
    from mmengine.config import Config
    from mmengine.registry import HOOKS, MODELS, init_default_scope

    if 'mmdet::' in snippet:
        pytest.importorskip('mmdet', reason='needs MMDetection')
    (tmp_path / 'documented.py').write_text(snippet)
    cfg = Config.fromfile(tmp_path / 'documented.py')
    if '_base_' in snippet:
        init_default_scope(cfg.default_scope)
    for hook in cfg.get('custom_hooks', ()):
        built = type(HOOKS.build(hook)).__module__
        assert hook['type'] not in snippet or built.startswith('mmstepnet.')
    if 'model' in cfg:
        backbone = MODELS.build(cfg.model.backbone)
        assert type(backbone).__module__.startswith('mmstepnet.')
        size = 224 if 'VisionTransformer' in snippet else 64
        outs = backbone.eval()(torch.rand(1, 3, size, size))
        assert all(out.isfinite().all() for out in outs)


@pytest.mark.parametrize('page', PAGES, ids=name_page)
def test_commands_exist(page):
    for line in '\n'.join(snippets(page, 'bash')).splitlines():
        for script in re.findall(
            r'\b(?:tools|configs|requirements)/[\w/.-]+', line
        ):
            assert (ROOT / script).exists(), line
        for module in re.findall(r'python -m ([\w.]+)', line):
            path = ROOT / module.replace('.', '/')
            assert (
                path.with_suffix('.py').exists()
                or (path / '__main__.py').exists()
            ), line


@pytest.mark.parametrize('stack', ['onedl', 'openmmlab', 'core'])
def test_versions_are_the_pins(stack):
    page = (ROOT / 'docs' / 'install_and_versions.md').read_text('utf-8')
    pins = (ROOT / 'requirements' / f'{stack}.txt').read_text()
    for name, version in re.findall(r'^([\w-]+)==(\S+)$', pins, re.MULTILINE):
        assert version in page, name


def test_what_a_package_index_shows():
    """Links by the one address; its text where there is none."""
    setup = runpy.run_path(str(ROOT / 'setup.py'))
    version = mmstepnet.__version__
    assert f'## {version}\n' in (ROOT / 'CHANGELOG.md').read_text('utf-8')
    assert f'version: {version}\n' in (ROOT / 'CITATION.cff').read_text()
    links = re.findall(r'\]\(([^)\s]+)\)', setup['readme']('https://x/y'))
    ours = [link for link in links if link.startswith('https://x/y/')]
    assert len(ours) > 20 and all('://' in link for link in links)
    for link in ours:
        kind, tag, path = link.removeprefix('https://x/y/').split('/', 2)
        assert kind in ('raw', 'blob') and tag == f'v{version}'
        assert (ROOT / path.partition('#')[0]).exists()
    without = setup['readme']('')
    assert re.findall(r'\]\((?!https?://)', without) == []
    assert 'versions' in without and setup['urls']('') == {}


@pytest.mark.parametrize('page', READMES, ids=name_page)
def test_links_lead_somewhere(page):
    """Those of other pages are looked at where the site is built."""
    text = re.sub(
        r'^```.*?^```',
        '',
        page.read_text('utf-8'),
        flags=re.DOTALL | re.MULTILINE,
    )
    for link in re.findall(r'\]\(([^)\s]+)\)', text):
        if link.startswith(('http://', 'https://')):
            continue
        target, _, anchor = link.partition('#')
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        if anchor:
            assert anchor in headings(path), link
