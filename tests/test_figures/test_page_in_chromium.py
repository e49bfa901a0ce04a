"""The report page in a real browser."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from mmstepnet.figures import save_report
from mmstepnet.stiffness.training import Checkpoint, Training

CHROMIUM = next(
    filter(None, map(shutil.which, ('chromium', 'chromium-browser',
                                    'google-chrome'))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason='no Chromium (apt-get install chromium)')

# Runs before the page's own scripts.
WATCH = """<script>
const problems = [];
for (const kind of ['error', 'unhandledrejection', 'securitypolicyviolation'])
  window.addEventListener(kind, e => problems.push(
    kind + ': ' + (e.message || e.reason || e.blockedURI)), true);
for (const kind of ['error', 'warn']) {
  const log = console[kind];
  console[kind] = (...a) => { problems.push(kind + ': ' + a); log(...a); };
}
</script>"""

# Chooses every option of every figure and tells what is drawn.
USE = """<script>
window.addEventListener('load', async () => {
  const panels = {};
  for (const panel of document.querySelectorAll('.panel')) {
    const plot = panel.querySelector('.plot');
    while (!plot.querySelector('.main-svg'))
      await new Promise(done => setTimeout(done, 50));
    const select = panel.querySelector('select');
    const drawn = [];
    for (let i = 0; i < (select ? select.options.length : 1); i++) {
      if (select) {
        const plotted = new Promise(
          done => plot.once('plotly_afterplot', done));
        select.selectedIndex = i;
        select.dispatchEvent(new Event('change'));
        await plotted;
      } else {
        await draw(panel);
      }
      const box = plot.getBoundingClientRect();
      drawn.push({
        name: select ? select.value : '',
        marks: plot.querySelectorAll(
          '.trace, .heatmaplayer image, .bars path').length,
        legend: [...plot.querySelectorAll('.legendtext')].map(
          t => [t.textContent, parseFloat(getComputedStyle(t).fontSize),
                t.getBoundingClientRect().right <= box.right + 1]),
        share: [...plot.querySelectorAll('[data-title*=Share]')].length,
        width: box.width, height: box.height});
    }
    panels[panel.id] = drawn;
  }
  const rows = () => [...document.querySelectorAll('.sortable tbody tr')].map(
    row => row.cells[2].firstChild.textContent);
  const button = document.querySelectorAll('.sortable th button')[2];
  button.click();
  button.focus({focusVisible: true});
  const outline = getComputedStyle(button).outlineStyle;
  document.body.style.width = '390px';
  const phone = [...document.querySelectorAll('main > *')].filter(
    part => part.scrollWidth > 390).map(part => part.id);
  document.body.style.width = '';
  dispatchEvent(new Event('beforeprint'));
  const printed = {
    closed: document.querySelectorAll('details:not([open])').length,
    widths: [...document.querySelectorAll('.plot')].map(
      plot => plot.querySelector('.main-svg').getBoundingClientRect().width)};
  dispatchEvent(new Event('afterprint'));
  printed.after = document.querySelectorAll('details:not([open])').length;
  console.log('outcome ' + JSON.stringify({
    panels, problems, outline, phone, printed, sorted: rows(),
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
        browser = subprocess.Popen([
            CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu',
            '--disable-quic', '--no-first-run',
            '--disable-background-networking', '--disable-component-update',
            '--disable-sync', f'--user-data-dir={tmp_path / "profile"}',
            '--enable-logging=stderr',
            # All figures are in the window and hence drawn.
            '--window-size=1300,9000', page.as_uri()
        ], stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
    try:
        end = time.monotonic() + limit
        while not (outcome := re.search(
                r'"outcome ({.*})", source:', said())):
            assert browser.poll() is None and time.monotonic() < end, (
                said()[-2000:])
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    console = [line for line in said().splitlines()
               if 'CONSOLE' in line and outcome[0] not in line]
    return json.loads(outcome[1]), console


@pytest.fixture(scope='module')
def opened(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp('report')
    page = save_report(runs, out, {'a training': Training(
        'epoch', 'adaptive', [f'b{i}' for i in range(20)], [
            Checkpoint(k, 0.5, 0.4, 0.6, np.full(20, 0.1 * k))
            for k in range(9)])})
    html = page.read_text('utf-8')
    assert html.count('<head>') == 1
    page.write_text(
        html.replace('<head>', '<head>' + WATCH, 1).replace(
            '</body>\n</html>', USE + '</body>\n</html>'), 'utf-8')
    return open_page(page, out)


def test_no_error_and_no_request(opened):
    outcome, console = opened
    assert outcome['problems'] == []
    assert console == []
    assert outcome['requests'] == []


def test_every_figure_is_drawn(opened, runs):
    panels = opened[0]['panels']
    assert list(panels) == [
        *(f'figure-{n}' for n in (2, 3, 6, 7, 9, 10)),
        'over-training']
    assert [d['name'] for d in panels['figure-3']] == [r.label for r in runs]
    assert [d['name'] for d in panels['figure-9']] == [
        r.label for r in runs[2:]]
    for drawn in panels.values():
        for figure in drawn:
            assert figure['marks'] > 0, figure
            assert figure['width'] > 900 and figure['height'] >= 300, figure
    assert panels['figure-2'][0]['marks'] == len(runs)


def test_legends_are_readable(opened):
    panels = opened[0]['panels']
    assert [t[0] for t in panels['figure-7'][0]['legend']] == [
        'plain', 'se', 'stepnet']
    for drawn in panels.values():
        for figure in drawn:
            for text, size, inside in figure['legend']:
                assert text and size >= 11 and inside, (text, size, inside)


def test_page_fits_its_window(opened):
    assert not opened[0]['overflow']
    assert opened[0]['phone'] == []


def test_all_is_printed(opened):
    printed = opened[0]['printed']
    assert printed['closed'] == 0 and printed['after'] == 2
    assert len(printed['widths']) == 7 and set(printed['widths']) == {680}


def test_focus_is_seen(opened):
    assert opened[0]['outline'] == 'solid'


def test_nothing_offers_to_send_a_figure_away(opened):
    assert all(figure['share'] == 0
               for drawn in opened[0]['panels'].values() for figure in drawn)


def test_table_sorts_by_tns(opened, runs):
    assert opened[0]['sorted'] == [
        f'{tns:.4f}' for tns in sorted(run.tns for run in runs)]
