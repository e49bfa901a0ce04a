"""The documents as a site."""

import json

import numpy as np
import pytest

from tests.documents import ROOT
from tests.programs import run_tool


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """The folder of the built site; no warning was given."""
    pytest.importorskip('mkdocs', reason='needs requirements/docs.txt')
    folder = tmp_path_factory.mktemp('site')
    run_tool(
        '-m',
        'mkdocs',
        'build',
        '--strict',
        '--quiet',
        '--site-dir',
        folder,
        NO_MKDOCS_2_WARNING='1',
    )
    return folder


def test_pages_that_programs_write(site):
    steps = (site / 'api' / 'steps' / 'index.html').read_text('utf-8')
    assert 'insert_steps' in steps
    commands = (site / 'commands' / 'index.html').read_text('utf-8')
    for program, option in (
        ('python -m mmstepnet worth', '--rungs'),
        ('python tools/train.py', '--resume'),
        ('python tools/dataset_converters/compose_digits.py', '--seed'),
    ):
        _, _, section = commands.partition(f'<code>{program}</code>')
        assert option in section.partition('<h3')[0]


QUESTIONS = {
    'put SE into my ViT': {'any_network', 'insert_steps'},
    'accuracy worse after insertion': {'faq'},
    'which block is stiff': {'stiffness'},
    'FSDP': {'any_network'},
    'cite a TNS': {'stiffness'},
    'which PyTorch': {'install_and_versions'},
    'cost on a GPU': {'speed'},
    'take it out': {'insert_steps', 'save_and_load'},
    'my network has no steps': {'any_network'},
    'what is a stage': {'glossary'},
}
"""What users ask, and the pages that answer it."""


@pytest.fixture(scope='module')
def ask(site):
    """A search in the site's index: the pages of what it finds, in order.

    As in the browser, lunr ranks sections, and a title counts 1,000 times.
    """
    lunr = pytest.importorskip('lunr', reason='needs requirements/docs.txt')
    index = json.loads((site / 'search' / 'search_index.json').read_text())
    fields = index['config']['fields']
    sections = lunr.lunr(
        ref='location',
        fields=[
            {'field_name': name, 'boost': fields[name]['boost']}
            for name in ('title', 'text')
        ],
        documents=index['docs'],
    )

    def pages(question):
        found = (hit['ref'] for hit in sections.search(question))
        return list(dict.fromkeys(ref.partition('/')[0] for ref in found))

    return pages


@pytest.mark.parametrize('question', QUESTIONS)
def test_a_question_finds_its_page(ask, question):
    assert QUESTIONS[question] & set(ask(question)[:5])


def test_the_picture_of_the_first_page(tmp_path):
    """It is drawn again, and shows what the sentence below it says."""
    for library in ('altair', 'vl_convert', 'PIL'):
        pytest.importorskip(library)
    path = tmp_path / 'picture.png'
    run_tool('docs/_site/picture.py', path)
    for picture in path, ROOT / 'docs' / 'where_it_works_hard.png':
        assert picture.stat().st_size < 60_000
    plain, se, stepnet = (
        np.load(ROOT / 'docs' / 'recordings' / f'resnet20_{name}.npz')[
            'unit'
        ].mean(0)
        for name in ('plain', 'se', 'stepnet')
    )
    assert plain.argmax() == 4 and plain[4] > 1
    assert (stepnet < np.minimum(plain, se)).all()
    assert sorted(stepnet.argsort()[:2]) == [4, 5]
