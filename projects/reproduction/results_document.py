"""RESULTS.md: verdicts, intervals, tables and figures from ``results/``."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .claims import (
    CLAIMS,
    MARGIN,
    METRIC_PLAN,
    OTHER_TNS,
    PAPER_SEEDS,
    PAPER_TABLES,
    PLAN,
    PlannedClaim,
)
from .columns import Column, read_columns
from .comparisons import LEVEL
from .findings import Finding, find_all
from .metafile import Cell
from .planned_findings import judge_plan
from .plots import save_plots, save_ranking
from .results import load_results
from .sheet import NONE, Sheet
from .tables import table_sheets
from .warm_start_results import (
    read_warm_starts,
    warm_start_column,
    warm_start_sheet,
)

if TYPE_CHECKING:
    from projects.reproduction.complexity import Complexity

HEAD = """# Results

In small trainings StepNet is no more accurate than the plain network. The papers' full trainings were not run here.

| | |
|---|---|
| decided, for small trainings alone | the claims under [Confirmatory](#confirmatory) that are called held or refuted |
| not decided, because no such training was run | what the papers report of full CIFAR, STL-10, ImageNet, COCO, and of translation that has converged |

An easier way in is the page [The papers' tables](../../docs/papers_tables.md). This one has every number.

| you want | command |
|---|---|
| this page again | `python -m projects.reproduction.paper report`, from the JSON files of [`results/`](results), one a config and seed. It is not edited by hand |
| one table | `python -m projects.reproduction.paper table NAME --markdown` |
| the runs that are missing | `python -m projects.reproduction.paper run NAME --seeds N` |

"CIFAR-10 JPEG" means class folders of images encoded as JPEG, not the original files.
"""  # noqa: E501

CONFIRMATORY = f"""## Confirmatory

For these claims the seeds, the tests and the smallest difference that matters ({MARGIN} points) were written down before the runs, in
[PLAN.md](PLAN.md). The level is {LEVEL} for all of them together (Bonferroni's correction).

| verdict | means |
|---|---|
| held | Paired t-tests find the claimed difference from every other row of the claim |
| refuted | For one of these rows, the test finds the opposite difference. Or it finds no difference, and two one-sided paired t-tests show that any would be smaller than {MARGIN} points |
| undecided | neither |

There is no verdict before all planned seeds.
"""  # noqa: E501

METRIC = f"""### The second paper's claims

These are claims of metric-attention (https://arxiv.org/abs/2412.18288), with the printed settings. [Its plan](../metric_attention/PLAN.md) has {len(METRIC_PLAN)} of
them. The level is {LEVEL} for all of them together, apart from the claims above. Loss and variance have no smallest difference that matters.
Variances are compared by Brown and Forsythe's test.
"""  # noqa: E501

PAPER = f"""### The paper's tables

These are claims of the paper in its own tables ({', '.join(PAPER_TABLES)}), at its {len(PAPER_SEEDS)} runs. The tests are the same, at level {LEVEL} for each claim
and reading. That is corrected for the comparisons of a claim, not for the number of claims. TNS has no smallest difference that matters, and is
not tested for equivalence.
"""  # noqa: E501

EXPLORATORY = f"""## Exploratory

Everything else has no verdict. The numbers are mean differences over paired seeds, with their {1 - LEVEL:.0%} intervals of Student's t. Each stands for
itself, and nothing corrects for their number. A rank correlation has its p-values, as in the paper.

| what each number of stiffness names | |
|---|---|
| the reading of NSI | adaptive: ‖f‖ / ‖x_t‖; unit: ‖f ⊗ Δt‖ / ‖x_t‖; returned: ‖out − x_t‖ / ‖x_t‖ with the activation |
| what the mean μ is over | the stage (Definition 2), or all blocks (Eq. 15) |

Rows trained before all readings were kept have the adaptive one with μ over the stage alone.
"""  # noqa: E501


def write_report(tables: dict[str, list[Cell]], results: Path, out: Path,
                 measure: Callable[[str], 'Complexity']) -> list[Path]:
    """Write the report and its figures.

    Args:
        tables (dict[str, list[Cell]]): All tables.
        results (Path): Folder of our results.
        out (Path): The report; figures go to ``docs/results/`` beside it.
        measure (Callable): Counts parameters and operations of a config.

    Returns:
        list[Path]: The files.

    Raises:
        ValueError: A result is damaged, see :func:`load_results`, does not
            fit the others, or there is none.
    """
    warm_starts = read_warm_starts(results)
    found = {
        table: cells for table, cells in tables.items()
        if any(load_results(results, c.name) for c in cells if c.config)
    }
    if not (warm_starts or found):
        raise ValueError(f'{results.resolve()} has no results of any table; '
                         'give their folder as --results')
    columns = read_columns(tables, results)
    claims = claims_text([*columns, *map(warm_start_column, warm_starts)])
    folder = out.parent / 'docs' / 'results'
    folder.mkdir(parents=True, exist_ok=True)
    parts, figures = [HEAD, claims], []
    for path in save_ranking(columns, folder):
        figures.append(path)
        parts.append(_picture(path))
    if warm_starts:
        parts += ['## Warm start\n',
                  *(warm_start_sheet(w).to_markdown() for w in warm_starts)]
    parts.append('## Tables\n')
    for cells in found.values():
        cells = _with_results(cells, results)
        parts += [sheet.to_markdown()
                  for sheet in table_sheets(cells, results, measure)]
        plots = save_plots(cells, results, folder)
        parts += map(_picture, plots)
        figures += plots
    parts += ['## Where they come from\n',
              provenance_sheet(found, results, warm_starts).to_markdown()]
    out.write_text('\n'.join(parts), encoding='utf-8')
    return [out, *figures]


def claims_text(columns: Sequence[Column]) -> str:
    """Confirmatory and exploratory claims, in Markdown.

    Args:
        columns (Sequence[Column]): Columns of all tables and warm starts.
    """
    judged, explored = [], []
    for finding in find_all(columns):
        (judged if finding.verdict else explored).append(finding)
    parts = [CONFIRMATORY, *_plan_texts(columns, PLAN), '', METRIC,
             *_plan_texts(columns, METRIC_PLAN)]
    if judged:
        parts += ['', PAPER, _findings_text(judged)]
    parts += ['', EXPLORATORY, *(
        f'{note}\n' for note in OTHER_TNS.values()), _findings_text(explored)]
    seen = {f.claim.text for f in (*judged, *explored)}
    missing = [claim.text for claim in CLAIMS if claim.text not in seen]
    if missing:
        parts.append(f'\nWithout results yet: {"; ".join(missing)}.')
    return '\n'.join([*parts, ''])


def _plan_texts(columns: Sequence[Column],
                plan: Sequence[PlannedClaim]) -> list[str]:
    texts, waiting = [], Counter()
    rows = ['| claim | data and seeds | verdict |', '|---|---|---|']
    for finding, planned in zip(judge_plan(columns, plan), plan):
        begun = any(result['seed'] in planned.seeds
                    for results in finding.column.results.values()
                    for result in results)
        if begun:
            texts.append(_planned_text(finding, planned.seeds))
            rows.append(
                f'| {finding.claim.text} | {_where(finding, planned.seeds)} '
                f'| {finding.verdict} |')
        else:
            waiting[str(finding.column)] += 1
    if waiting:
        texts.append('- No run yet: ' + '; '.join(
            f'{column} ({number} claims)'
            for column, number in waiting.items()))
    return [*rows, '', *texts] if len(rows) > 2 else texts


def _where(finding: Finding, seeds: range) -> str:
    return f'{finding.column}, seeds {seeds[0]} to {seeds[-1]}'


def _planned_text(finding: Finding, seeds: range) -> str:
    rows = '\n'.join(map(_row, finding.evidence))
    return (f'**{finding.claim.text}; {_where(finding, seeds)}: '
            f'{finding.verdict}.**\n\n| compared | found |\n|---|---|\n'
            f'{rows}\n')


def _findings_text(findings: Sequence[Finding]) -> str:
    lines = []
    for claim, group in groupby(findings, lambda f: f.claim):
        lines += [f'**{claim.text}**\n',
                  '| data | compared | found |\n|---|---|---|']
        for finding in group:
            where = str(finding.column)
            where += f'; {finding.reading}' if finding.reading else ''
            where += f': **{finding.verdict}**' if finding.verdict else ''
            for line in finding.evidence:
                lines.append(f'| {where} {_row(line)}')
                where = ''  # of the rows below it, too
        lines.append('')
    return '\n'.join(lines)


def _row(evidence: str) -> str:
    """What was compared, and what came out, as cells of a table."""
    compared, _, found = evidence.rpartition(': ')
    return f'| {compared} | {found} |'


def provenance_sheet(tables: dict[str, list[Cell]], results: Path,
                     warm_starts: Sequence[list[dict]]) -> Sheet:
    """Machines, versions, commits and command of each table's results.

    Configs that were run with other seeds have a row of their own.
    """
    rows = []
    for table, cells in tables.items():
        names = dict.fromkeys(cell.name for cell in cells if cell.config)
        groups = {}
        for name in names:
            found = load_results(results, name)
            if found:
                run = (tuple(found[0]['cfg_options']), found[0]['seed'],
                       found[-1]['seed'])
                groups.setdefault(run, {})[name] = found
        for (options, first, last), found in groups.items():
            command = ['python -m projects.reproduction.paper run', table]
            command += found if len(found) < len(names) else []
            span = f'{first}-{last}' if first else str(last + 1)
            command += ['--seeds', span]
            command += ['--cfg-options', *options] if options else []
            origin = _origin([r for seeds in found.values() for r in seeds])
            rows.append([table, *origin, f'`{" ".join(command)}`'])
    for seeds in warm_starts:
        epochs = ' '.join(map(str, seeds[0]['epochs']))
        rows.append(['warm start', *_origin(seeds),
                     '`python -m projects.reproduction.warm_start CONFIG '
                     f'CHECKPOINT --epochs {epochs} --lr {seeds[0]["lr"]:g}`'])
    return Sheet('Runs', [
        'Table', 'Runs', 'Hours', 'Machine', 'PyTorch', 'Commits', 'Command'
    ], rows, ['Hours are those of the training iterations, by the clock. In '
              'brackets stands how many runs noted them. Older runs did not.'],
        labels=7)


def _origin(results: list[dict]) -> list[str]:
    starts = [start for result in results
              for start in result.get('starts', ())]
    commits = {re.sub('(?<=^.{9})[0-9a-f]+', '', str(s['commit']))
               for s in starts}
    seconds = [r['seconds'] for r in results if 'seconds' in r]
    hours = f'{sum(seconds) / 3600:.1f} ({len(seconds)})' if seconds else NONE
    return [str(len(results)), hours,
            *('; '.join(sorted({s[key] for s in starts}))
              for key in ('machine', 'torch')), ', '.join(sorted(commits))]


def _with_results(cells: list[Cell], results: Path) -> list[Cell]:
    """Whole columns, of those that have results."""
    columns = {cell.column for cell in cells
               if cell.config and load_results(results, cell.name)}
    return [cell for cell in cells if cell.column in columns]


def _picture(path: Path) -> str:
    return f'![{path.stem}](docs/results/{path.name})\n'
