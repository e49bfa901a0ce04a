"""The report page in a real browser."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest

from mmstepnet.figures import save_report
from tests.test_figures.conftest import changed, checkpoints, flat_run, part_of

CHROMIUM = next(
    filter(
        None,
        map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome')),
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason='no Chromium (apt-get install chromium)'
)

# Chooses every option of every figure and tells what is drawn.
USE = """<script>
const near = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
  && a.top < b.bottom - 2 && b.top < a.bottom - 2;
function look(panel) {
  const plot = panel.querySelector('.plot');
  const picture = plot.querySelector('svg').getBoundingClientRect();
  const texts = [...plot.querySelectorAll('svg text')].filter(
    t => t.textContent && getComputedStyle(t).opacity > 0).map(
    t => [t.textContent, t.getBoundingClientRect()]);
  return {
    name: panel.querySelector('select')?.value ?? '',
    marks: plot.querySelectorAll('[aria-roledescription]').length,
    texts: texts.map(([text]) => text),
    cut: texts.filter(([, box]) => box.left < picture.left - 1
      || box.right > picture.right + 1 || box.top < picture.top - 1
      || box.bottom > picture.bottom + 1).map(([text]) => text),
    overprinted: texts.flatMap(([text, box], i) => texts.slice(0, i).filter(
      ([, other]) => near(box, other)).map(([other]) => [text, other])),
    away: [...plot.querySelectorAll('details a')].filter(
      a => !a.download).length,
    width: picture.width, height: picture.height};
}
window.addEventListener('load', async () => {
  const panels = {};
  for (const panel of document.querySelectorAll('.panel')) {
    const select = panel.querySelector('select');
    panels[panel.id] = [];
    for (let i = 0; i < (select ? select.options.length : 1); i++) {
      if (select) select.selectedIndex = i;
      await draw(panel);
      panels[panel.id].push(look(panel));
    }
  }
  const rows = () => [...document.querySelectorAll('.sortable tbody tr')].map(
    row => row.cells[2].firstChild.textContent);
  const button = document.querySelectorAll('.sortable th button')[2];
  button.click();
  button.focus({focusVisible: true});
  const outline = getComputedStyle(button).outlineStyle;
  document.body.style.width = '390px';
  const phone = {};
  for (const panel of document.querySelectorAll('.panel')) {
    await draw(panel);
    phone[panel.id] = look(panel);
  }
  const wide = [...document.querySelectorAll('main > *, .plot')].filter(
    part => part.scrollWidth > 390).map(part => part.id);
  document.body.style.width = '';
  const closed = 'details:not([open]):not(.plot *)';
  dispatchEvent(new Event('beforeprint'));
  const widths = () => [...document.querySelectorAll('.plot svg.marks')].map(
    picture => picture.getBoundingClientRect().width);
  const redrawn = () => widths().every(width => width > 600 && width < 682);
  for (let i = 0; i < 200 && !redrawn(); i++)
    await new Promise(done => setTimeout(done, 100));
  const printed = {
    closed: document.querySelectorAll(closed).length, widths: widths()};
  dispatchEvent(new Event('afterprint'));
  printed.after = document.querySelectorAll(closed).length;
  console.log('outcome ' + JSON.stringify({
    panels, outline, phone, wide, printed, sorted: rows(),
    overflow: document.documentElement.scrollWidth > innerWidth,
    requests: performance.getEntriesByType('resource').map(e => e.name)}));
});
</script>"""


def open_page(page, tmp_path, limit=300):
    """What the page tells of itself, and the browser's console.

    The browser stays open until the page has told it, on a machine however
    slow: a dump after a set time comes too early on one under load.
    """
    log = tmp_path / 'chromium.log'

    def said():
        return log.read_text('utf-8', 'replace')

    with log.open('w') as stderr:
        browser = subprocess.Popen(
            [
                CHROMIUM,
                '--headless',
                '--no-sandbox',
                '--disable-gpu',
                '--disable-quic',
                '--no-first-run',
                '--disable-background-networking',
                '--disable-component-update',
                '--disable-sync',
                f'--user-data-dir={tmp_path / "profile"}',
                '--enable-logging=stderr',
                # All figures are in the window and hence drawn.
                '--window-size=1300,9000',
                page.as_uri(),
            ],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + limit
        while not (outcome := re.search(r'"outcome ({.*})", source:', said())):
            assert browser.poll() is None and time.monotonic() < end, said()[
                -2000:
            ]
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    console = [
        line
        for line in said().splitlines()
        if 'CONSOLE' in line and outcome[0] not in line
    ]
    return json.loads(outcome[1]), console


def hard(run):
    """Long names, many blocks, and values that differ in late digits."""
    many = part_of(run, blocks=[0] * 50)
    step = 0.26894 + 2e-3 * many.trajectories.step_mean
    return replace(
        changed(
            many,
            step_mean=step,
            stages=np.repeat([0, 1, 2, 3, 4], 10),
            blocks=[
                f'backbone.stages.{i // 10}.blocks.{i}.attention_step'
                for i in range(50)
            ],
        ),
        label='timm.vit_base_patch16_clip_224.openai_ft_in12k_in1k',
    )


@pytest.fixture(scope='module')
def shown(runs):
    return [*runs, hard(runs[2]), flat_run(runs[2])]


@pytest.fixture(scope='module')
def opened(shown, tmp_path_factory):
    out = tmp_path_factory.mktemp('report')
    page = save_report(
        shown,
        out,
        {
            'a training ' * 9: checkpoints(
                shown[-2], weights=[f'epoch_{k}_of_many' for k in range(40)]
            )
        },
    )
    page.write_text(
        page.read_text('utf-8').replace(
            '</body>\n</html>', USE + '</body>\n</html>'
        ),
        'utf-8',
    )
    return open_page(page, out)


def test_every_figure_is_drawn(opened, shown):
    panels = opened[0]['panels']
    assert list(panels) == [
        *(f'figure-{n}' for n in (2, 3, 6, 7, 9, 10)),
        'training',
    ]
    assert [d['name'] for d in panels['figure-9']] == [
        run.label for run in shown if run.adapts
    ]
    assert len(panels['figure-10']) == 4
    for figure in itertools.chain(*panels.values()):
        assert figure['marks'] > 0, figure
        assert figure['width'] > 900 and figure['height'] >= 300, figure
        assert figure['away'] == 0, figure  # no link sends it to others
    for run in shown:
        assert set(run.trajectories.blocks) <= {
            f'backbone.{text}' if 'attention_step' in text else text
            for text in panels['figure-3'][0]['texts']
        }


def test_no_text_is_cut_or_overprinted(opened):
    """In a wide window and on a phone."""
    for figure in itertools.chain(
        *opened[0]['panels'].values(), opened[0]['phone'].values()
    ):
        assert figure['cut'] == [], figure
        assert figure['overprinted'] == [], figure


def test_the_page(opened, shown):
    """No error, no request, as wide as its window, whole in print."""
    page, console = opened
    assert console == page['requests'] == []
    assert not page['overflow'] and page['wide'] == []
    assert all(figure['width'] <= 390 for figure in page['phone'].values())
    printed = page['printed']
    assert printed['closed'] == 0 and printed['after'] == 2
    assert len(printed['widths']) == 7
    assert all(600 < width <= 681 for width in printed['widths']), printed
    assert page['outline'] == 'solid'
    assert page['sorted'] == [
        f'{tns:#.4g}' for tns in sorted(run.tns for run in shown)
    ]
