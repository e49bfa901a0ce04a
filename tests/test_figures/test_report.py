import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from mmstepnet.figures.report import (
    report_notes,
    report_page,
    report_panels,
)
from mmstepnet.stiffness import FIELDS, MEANS, READING_TEXTS, READINGS
from tests.test_figures.conftest import changed, flat_run, part_of


class Page(HTMLParser):
    """Visible text, table cells and everything that a browser may load."""

    def __init__(self, page):
        super().__init__()
        self.text, self.cells, self.loads, self.scripts = '', [], [], []
        self._tag = None
        self.feed(page)
        self.cells = [cell.strip() for cell in self.cells]

    def handle_starttag(self, tag, attributes):
        self._tag = tag
        attributes = dict(attributes)
        if tag == 'td':
            self.cells.append('')
        if tag == 'script':
            self.scripts.append('')
        if 'src' in attributes or tag == 'link':
            self.loads.append(attributes.get('src', attributes.get('href')))

    def handle_endtag(self, tag):
        self._tag = None if tag == 'script' else self._tag

    def handle_data(self, data):
        if self._tag == 'script':
            self.scripts[-1] += data
        elif self._tag != 'style':
            self.text += data
            if self.cells:
                self.cells[-1] += data


@pytest.fixture(scope='module')
def page(runs):
    return Page(report_page(runs, ['figure_2.png']))


def test_figures_of_the_paper(runs):
    panels = {panel.number: panel for panel in report_panels(runs)}
    assert list(panels) == [2, 3, 6, 7, 9, 10]
    assert list(panels[3].figures) == [run.label for run in runs]
    assert list(panels[9].figures) == [run.label for run in runs[2:]]
    assert panels[9].notes == [
        'Left out, their attention value is constant: plain (1), plain (2).']
    assert len(panels[10].figures) == 4


def test_page_tells_what_it_shows(page, runs):
    for text in ('adaptive', READING_TEXTS['adaptive'], 'Samples a run40',
                 'layer1.0, layer2.0, layer3.0', 'need at least three runs',
                 'ResNet-18, has TNS 0 by definition', 'Kendall τ ='):
        assert text in page.text.replace('\n', ''), text
    for run in runs:
        low, high = run.trajectories.tns_interval()
        assert f'{run.tns:.4f}{low:.4f} to {high:.4f}' in page.cells
        assert f'{run.proportion:.4f}' in page.cells
        assert any(cell.startswith(f'{run.accuracy.value:.4g}')
                   for cell in page.cells)


def test_every_reading_and_mean(page, runs):
    for run in runs:
        for reading in READINGS:
            for mu in MEANS:
                # The table's last cell goes on with what follows it.
                shown = f'{run.trajectories.tns(reading, mu):.4f}'
                assert any(cell.startswith(shown) for cell in page.cells)
    text = page.text.replace('\n', '')
    assert 'TNS (adaptive)' in text and 'does not compare' in text
    unit = Page(report_page([replace(run, reading='unit') for run in runs]))
    assert 'TNS (unit)' in unit.text
    assert f'{runs[2].trajectories.tns("unit"):.4f}' in unit.cells


def test_what_to_cite(page, runs):
    run = runs[2]
    low, high = run.trajectories.tns_interval()
    text = ' '.join(page.text.split())
    assert (f'{run.label} {run.tns:.4f} [{low:.4f}, {high:.4f}], n = 40'
            in text)
    assert 'author = {{The mmstepnet contributors}}' in text
    for name, stiffness, nsi in run.trajectories.stiffest_blocks(5):
        assert f'{name}{stiffness:.4f}, NSI {nsi:.3f}' in page.cells


def test_models_with_seeds(page, runs):
    tns = [run.tns for run in runs[2:4]]
    mean, deviation = np.mean(tns), abs(tns[0] - tns[1]) / 2**0.5
    assert f'{mean:.4g} ± {deviation:.2g}' in page.cells


def test_page_is_self_contained(page):
    assert page.loads == ['data:,']
    assert page.scripts.count(get_plotlyjs()) == 1


def test_labels_are_text(runs):
    label = '</script><img src=x onerror=alert(1)>'
    odd = replace(runs[2], label=label, model=label)
    page = Page(report_page([odd, *runs[3:]]))
    assert page.loads == ['data:,']
    assert page.text.count(label) >= 4
    names = [t.name for panel in report_panels([odd])
             for figure in panel.figures.values() for t in figure.data
             if t.name and 'onerror' in t.name]
    assert names and all('<' not in name for name in names)


def test_notes(runs, run):
    assert report_notes(runs) == []
    other = changed(
        run, settings={**run.trajectories.settings, 'split': 'test'})
    assert 'different data splits' in report_notes([run, other])[0]
    other = part_of(run, samples=slice(9))
    assert 'different numbers of samples' in report_notes([run, other])[0]
    metric = replace(run.accuracy, metric='coco/bbox_mAP')
    notes = report_notes([run, replace(run, accuracy=metric)])
    assert len(notes) == 1 and 'Figure 7 keeps them apart' in notes[0]
    notes = report_notes([run, replace(run, label='b', accuracy=None)])
    assert notes == [
        'No accuracy was found for b; Figure 7 leaves these runs out.']


def test_other_block_counts(run):
    flat = flat_run(run)
    notes = report_notes([run, flat])
    assert 'different block structures' in notes[0]
    assert 'TNS is 0 by definition for resnet18' in notes[1]
    page = Page(report_page([run, flat]))
    assert re.search(r'6\s*3 stages', page.text)
    assert re.search(r'3\s*3 stages', page.text)
    overlays = report_panels([run, flat])[-1].figures
    assert [len(figure.data) for figure in overlays.values()] == [1, 1]


def test_no_accuracy(run):
    page = Page(report_page([replace(run, accuracy=None)]))
    assert 'there is no Figure 7' in page.text
    assert 'not found' in page.cells


def test_size_for_20_runs_of_resnet164(run):
    generator = np.random.default_rng(0)
    many = [
        replace(changed(
            run,
            **{name: generator.random((500, 51), np.float32)
               for name in FIELDS},
            stages=np.repeat([0, 1, 2], 17),
            blocks=[f'layer{s}.{b}' for s in (1, 2, 3)
                    for b in range(1, 18)]), label=f'run {i}')
        for i in range(20)
    ]
    page = report_page(many)
    assert len(page.encode()) - len(get_plotlyjs().encode()) < 5e6
    assert 'Points are 58 samples a block' in page
