"""The page: what it says, and that it holds all it shows."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import vl_convert

from mmstepnet.figures.report import report_charts, report_page
from mmstepnet.stiffness import FIELDS, MEANS, READING_TEXTS, READINGS
from tests.test_figures.conftest import changed, flat_run, part_of


class Page(HTMLParser):
    """Visible text, table cells and everything that a browser may load."""

    def __init__(self, runs, images=()):
        super().__init__()
        self.text, self.loads, self.scripts, self.tag = '', [], [], None
        self.html = report_page(runs, report_charts(runs), images)
        self.feed(self.html)
        self.cells = [cell.strip() for cell in self.text.split('\0')[1:]]
        self.text = ' '.join(self.text.replace('\0', '').split())

    def handle_starttag(self, tag, attributes):
        self.tag = tag
        self.text += '\0' * (tag == 'td')
        self.scripts += [''] * (tag == 'script')
        self.loads += [
            value
            for name, value in attributes
            if name == 'src' or (tag, name) == ('link', 'href')
        ]

    def handle_endtag(self, tag):
        self.tag = None

    def handle_data(self, data):
        if self.tag == 'script':
            self.scripts[-1] += data
        elif self.tag != 'style':
            self.text += data


@pytest.fixture(scope='module')
def page(runs):
    return Page(runs, ['figure_2.png'])


def test_page_tells_what_it_shows(page, runs):
    for text in (
        'adaptive',
        READING_TEXTS['adaptive'],
        'Samples a run40',
        'layer1.0, layer2.0, layer3.0',
        'Rank correlation of TNS',
        'Kendall τ =',
        'Left out, their attention value is constant: plain (1), plain (2).',
        'author = {{The mmstepnet contributors}}',
        'author = {Huang, Zhongzhan and Liang, Mingfu and ',
        'pages = {1412--1422}',
        'doi = {10.48550/',
    ):
        assert text in page.text, text
    for run in runs:
        low, high = run.trajectories.tns_interval()
        assert f'{run.tns:#.4g}{low:#.4g} to {high:#.4g}' in page.cells
        assert (
            f'{run.label} {run.tns:#.4g} [{low:#.4g}, {high:#.4g}], n = 40'
            in page.text
        )
        assert f'{run.proportion:#.4g}' in page.cells
        for name, stiffness, nsi in run.trajectories.stiffest_blocks(5):
            # The table's last cell goes on with what follows it.
            shown = f'{name}{stiffness:#.4g}, NSI {nsi:#.3g}'
            assert any(cell.startswith(shown) for cell in page.cells)
        for shown in (
            f'{run.accuracy.value:#.4g}',
            *(
                f'{run.trajectories.tns(reading, mu):#.4g}'
                for reading in READINGS
                for mu in MEANS
            ),
        ):
            assert any(cell.startswith(shown) for cell in page.cells)
    tns = [run.tns for run in runs[2:4]]
    assert (
        f'{np.mean(tns):#.4g} ± {abs(tns[0] - tns[1]) / 2**0.5:.2g}'
        in page.cells
    )
    assert 'The runs have' not in page.text


def test_a_page_shows_what_applies(runs):
    """One network: neither its accuracy nor others to compare it with."""
    alone = Page([replace(runs[2], accuracy=None)])
    titles = ('Figure 2', 'Figure 3', 'Figure 6', 'Figure 9')
    assert re.findall('Figure [0-9]+(?=[A-Z])', alone.text) == [*titles]
    for text in ('ccuracy', 'not found', 'Rank', 'Kendall', 'Transformer'):
        assert text not in alone.text, text
    # The accuracy of one, and of two, of which no order can be told.
    one = Page([replace(runs[2], accuracy=None), *runs[3:4]])
    assert {'not found', f'{runs[3].accuracy.value:#.4g}'} <= {
        cell.partition('accuracy')[0] for cell in one.cells
    }
    two = Page(runs[2:4])
    assert 'Figure 7' not in one.text and 'Figure 7Accuracy' in two.text
    assert 'which TNS is larger is not decided' in two.text
    assert 'TNS for one backbone only.' in two.text
    for page in (one, two):
        assert 'Kendall' not in page.text and 'Figure 10' in page.text
    # Two seeds of one model are all the runs: they are one set.
    assert len(report_charts(runs[2:4])) == len(report_charts(runs[2:3])) + 3


def test_the_stiffest_of_each_kind(run):
    blocks = [f'b.{k}.{step}_step' for k in '123' for step in ('attn', 'mlp')]
    page = Page([changed(run, stages=[0] * 6, blocks=blocks)])
    for name, places in (('attn_step', [0, 2, 4]), ('mlp_step', [1, 3, 5])):
        nsi = run.nsi[:, places].astype(float)
        excess = (nsi / nsi.mean(1, keepdims=True) - 1).clip(0)
        order = np.argsort(-(excess * nsi).mean(0))
        row = page.cells.index(f'{run.label}{name}')
        for cell, k in zip(page.cells[row + 1 : row + 4], order):
            assert cell.startswith(
                f'{blocks[places[k]]}{(excess * nsi).mean(0)[k]:#.4g}, NSI'
            )
    assert 'attention and MLP have a line each' in page.text


def test_another_reading(runs):
    page = Page([replace(run, reading='unit') for run in runs[2:]])
    assert 'TNS (unit)' in page.text
    assert any(
        cell.startswith(f'{runs[2].trajectories.tns("unit"):#.4g}')
        for cell in page.cells
    )


def test_labels_are_text_and_nothing_is_loaded(runs):
    label = '</script><img src=x onerror=alert(1)>'
    page = Page([replace(runs[2], label=label, model=label), *runs[3:]])
    assert page.loads == ['data:,']
    assert page.scripts.count(vl_convert.javascript_bundle()) == 1
    assert page.text.count(label) >= 4
    charts = [script for script in page.scripts if script.startswith('[')]
    assert any(label in json.dumps(json.loads(script)) for script in charts)


@pytest.mark.parametrize(
    'change, note',
    [
        pytest.param(
            lambda run: changed(
                run, settings={**run.trajectories.settings, 'split': 'test'}
            ),
            'The runs have 2 different data splits',
            id='splits',
        ),
        pytest.param(
            lambda run: part_of(run, samples=slice(9)),
            'The runs have different numbers of samples',
            id='numbers of samples',
        ),
        pytest.param(
            lambda run: replace(
                run, accuracy=replace(run.accuracy, metric='mAP')
            ),
            'The runs have 2 different metrics',
            id='metrics',
        ),
        pytest.param(
            lambda run: replace(run, label='b', accuracy=None),
            'No accuracy was found for b.',
            id='no accuracy',
        ),
        pytest.param(
            flat_run,
            'The runs have 2 different block structures',
            id='block structures',
        ),
        pytest.param(
            flat_run,
            'for one backbone only, and these runs have different blocks.',
            id='other blocks in Figure 7',
        ),
        pytest.param(
            flat_run,
            'TNS is 0 by definition for resnet18',
            id='one block a stage',
        ),
    ],
)
def test_notes(run, change, note):
    assert note in Page([run, change(run)]).text


def test_a_thousand_images_and_51_blocks(run):
    """What a page of three runs weighs, and what it says of its points."""
    generator = np.random.default_rng(0)
    many = [
        replace(
            changed(
                run,
                **{
                    name: generator.random((1000, 51), np.float32)
                    for name in FIELDS
                },
                stages=np.repeat([0, 1, 2], 17),
                blocks=[
                    f'layer{s}.{b}' for s in (1, 2, 3) for b in range(1, 18)
                ],
            ),
            label=f'run {i}',
        )
        for i in range(3)
    ]
    page = Page(many)
    assert len(page.html.encode()) < 1.5e6
    assert 'Points are 65 samples a block at most' in page.text
