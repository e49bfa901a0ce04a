"""README and docs: snippets run, links and commands lead somewhere.

The config over MMSegmentation is trained by test_tools/test_hosts.py;
those over projects that are not installed are left out.
"""

import re
import runpy
from importlib.util import find_spec
from unicodedata import east_asian_width

import pytest
import torch

import mmstepnet
from tests.documents import PAGES, READMES, ROOT, files, headings, snippets


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


def two_lines(readme):
    """The code of each row of the table of what one wants."""
    _, _, table = readme.read_text('utf-8').partition('\n|---|---|\n')
    rows = table.partition('\n\n')[0].splitlines()
    return [re.findall('`(.*?)`', row) for row in rows]


ROWS = two_lines(READMES[0])
BASES = {
    'StepResNet': 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'StepBackbone': 'yolox/yolox_s_8xb8-300e_coco.py',
}
"""Configs that the rows for MMDetection are tried in."""


def columns(line):
    return sum(2 if east_asian_width(c) in 'WF' else 1 for c in line)


@pytest.mark.parametrize('readme', READMES, ids=name_page)
def test_readme_is_short(readme):
    lines = readme.read_text('utf-8').splitlines()
    assert len(lines) <= 120
    assert max(map(columns, lines)) <= 120
    assert len(' '.join(lines).split()) <= 600


def test_readmes_show_the_same_code():
    first, second = (
        re.findall(
            '^```.*?^```',
            path.read_text('utf-8'),
            flags=re.DOTALL | re.MULTILINE,
        )
        for path in READMES
    )
    assert first == second
    assert ROWS == two_lines(READMES[1])


@pytest.mark.parametrize(
    'page',
    [
        READMES[0],
        ROOT / 'docs' / 'insert_steps.md',
        ROOT / 'docs' / 'save_and_load.md',
    ],
    ids=name_page,
)
def test_first_example_prints_what_the_page_shows(
    page, tmp_path, monkeypatch, capsys
):
    pytest.importorskip('timm')
    monkeypatch.chdir(tmp_path)
    program = snippets(page, 'python')[0]
    program = program.replace('pretrained=True', 'pretrained=False')
    exec(compile(program, page.name, 'exec'), {})
    assert capsys.readouterr().out == snippets(page, 'text')[0]


@pytest.mark.parametrize(
    'lines',
    [row for row in ROWS if 'type=' not in row[0] and len(row) == 2],
    ids='\n'.join,
)
def test_two_lines_run(lines, tmp_path, monkeypatch):
    models = pytest.importorskip('torchvision').models
    if 'onnx' in lines[0]:
        pytest.importorskip('onnxscript')
    monkeypatch.chdir(tmp_path)
    images = torch.rand(2, 3, 64, 64)
    names = dict(
        torch=torch,
        model=models.resnet18().eval(),
        accuracy=lambda model: float(model(images).std()),
        tokens=torch.rand(2, 10, 512),
    )
    exec('from mmstepnet import *', names)
    exec('\n'.join(lines), names)
    assert names['model'](images).isfinite().all()
    assert names['tokens'].shape == (2, 10, 512)


@pytest.mark.parametrize(
    'snippet',
    [
        pytest.param(
            f"_base_ = ['mmdet::{BASES[kind]}']\n"
            f'model = dict(backbone=dict({" ".join(row)}))',
            id=kind,
        )
        for row in ROWS
        for kind in BASES
        if f'mmstepnet.{kind}' in ' '.join(row)
    ]
    + [
        pytest.param(snippet, id='index')
        for snippet in snippets(ROOT / 'docs' / 'index.md', 'python')
        if '_base_' in snippet
    ],
)
def test_first_configs_start_as_the_plain_network(snippet, tmp_path):
    pytest.importorskip('mmdet', reason='needs MMDetection')
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope

    backbones = []
    for text in snippet, snippet.partition('\n')[0]:
        (tmp_path / 'documented.py').write_text(text)
        cfg = Config.fromfile(tmp_path / 'documented.py')
        init_default_scope(cfg.default_scope)
        backbone = MODELS.build(cfg.model.backbone).double()
        backbone.eval()
        backbones.append(backbone)
    stepped, plain = backbones
    found = stepped.load_state_dict(plain.state_dict(), strict=False)
    assert found.missing_keys and not found.unexpected_keys
    assert all('step.attention.' in key for key in found.missing_keys)
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    for ours, theirs in zip(stepped(images), plain(images), strict=True):
        assert (ours - theirs).abs().max() <= 1e-10 * theirs.abs().max()


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
                ('onnxscript', 'mmstepnet.export import'),
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
        hook.pop('priority', None)  # which is the runner's
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


def test_messages_of_the_questions_are_those_of_the_code():
    """What stands for a value is … there."""
    page = (ROOT / 'docs' / 'faq.md').read_text('utf-8')
    ours = page.split('## What mmstepnet says')[1].split('\n## ')[0]
    messages = re.findall(r'^### `(.*)`$', ours, re.MULTILINE)
    source = '\n'.join(p.read_text('utf-8') for p in files('mmstepnet'))
    joined = re.sub(r"""['"]\s+[rf]*['"]""", '', source)
    assert messages
    for message in messages:
        for part in message.split('…'):
            assert part.strip() in joined, message


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
