"""RESULTS.md and its tables: verdicts, intervals and means from the rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from mmstepnet.stiffness import READINGS, correlate_ranks

from .claims import CLAIMS, METRIC_PLAN, MODELS, PLAN, Claim
from .comparisons import LEVEL, Comparison, compare, compare_variances, judge
from .rows import MEANS, RESULTS, STIFFNESS, first_stage, quantities, read_rows
from .tables import METRICS, Cell

COSTS = Path(__file__).with_name('costs.json')
NONE, LEAST_VALIDATIONS = '–', 3
Table = tuple[list[str], list[list[str]]]
"""Header and lines."""
Rows = dict[str, list[dict[str, Any]]]
"""Rows of the seeds by label."""


def markdown(
    header: Sequence[str], rows: Sequence[Sequence[str]], labels: int = 1
) -> str:
    """A table; numbers, behind so many labels, are set to the right."""
    align = ['---'] * labels + ['---:'] * (len(header) - labels)
    return (
        '\n'.join(f'| {" | ".join(row)} |' for row in (header, align, *rows))
        + '\n'
    )


def mean_std(values: Sequence[float], decimals: int) -> str:
    """Mean and sample standard deviation over the seeds, as text."""
    text = f'{fmean(values):.{decimals}f}'
    if len(values) > 1:
        text += f' ± {stdev(values):.{decimals}f}'
    return text


def read_columns(
    cells: Sequence[Cell], results: Path = RESULTS
) -> Iterator[tuple[str, list[Cell], Rows]]:
    """Columns of a table with the rows that we have, by label."""
    for column in dict.fromkeys(cell.column for cell in cells):
        own = [cell for cell in cells if cell.column == column]
        yield (
            column,
            own,
            {
                cell.row: rows
                for cell in own
                if cell.config and (rows := read_rows(cell.name, results))
            },
        )


def pairs_of(claim: Claim, rows: Rows) -> list[tuple[str, str]]:
    """The claim's pairs that a column has, by its own labels."""
    found = [
        tuple(
            next((name for name in label.split('|') if name in rows), None)
            for label in pair
        )
        for pair in claim.pairs
    ]
    return [pair for pair in found if None not in pair]


def by_seed(
    rows: Sequence[dict], quantity: str, seeds: range | None = None
) -> dict[int, float]:
    """The quantity of each seed that has it."""
    return {
        row['seed']: value
        for row in rows
        if (value := quantities(row).get(quantity)) is not None
        and (seeds is None or row['seed'] in seeds)
    }


def comparisons(
    claim: Claim, rows: Rows, quantity: str
) -> Iterator[Comparison]:
    """Compare a claim's pairs in one quantity, seed by seed."""
    shift = f' + {claim.behind:g}' if claim.behind else ''
    decimals = 2 if quantity in METRICS else 4
    for pair in pairs_of(claim, rows):
        ours, others = (
            by_seed(rows[name], quantity, claim.seeds) for name in pair
        )
        common = sorted(ours.keys() & others.keys())
        if claim.seeds and len(common) < len(claim.seeds):
            yield Comparison(
                ' − '.join(pair),
                f'{len(common)} of {len(claim.seeds)} seeds',
                np.nan,
                np.nan,
            )
        elif claim.variance:
            yield compare_variances(
                ' and '.join(pair), [*ours.values()], [*others.values()]
            )
        elif common:
            yield compare(
                ' − '.join(pair) + shift,
                [ours[s] - others[s] + claim.behind for s in common],
                decimals,
                claim.margin,
            )


def planned_lines(
    claims: Sequence[Claim], rows_of: Callable[[Claim], Rows]
) -> tuple[list[list[str]], list[list[str]]]:
    """Verdicts of planned claims, at a level corrected for their number.

    Returns:
        tuple[list, list]: A line a claim with its verdict, and a line a
        comparison with what its tests find.
    """
    level, verdicts, tests = LEVEL / len(claims), [], []
    for claim in claims:
        found = list(comparisons(claim, rows_of(claim), claim.quantity))
        verdict = (
            'no verdict before all planned seeds'
            if any(np.isnan(c.p) for c in found) or not found
            else judge(found, level)
        )
        where = (
            f'{claim.table}, {claim.column}, seeds {claim.seeds[0]} to '
            f'{claim.seeds[-1]}'
        )
        verdicts.append([claim.text, where, verdict])
        tests += [
            [
                claim.text,
                where,
                c.name,
                c.found,
                f'{c.p:.2g}',
                '' if claim.margin is None else f'{c.p_small:.2g}',
                f'{level:.2g}',
            ]
            for c in found
        ]
    return verdicts, tests


def metric_lines(verdicts: Sequence[list[str]]) -> Iterator[list[str]]:
    """Three verdicts of one network: accuracy, loss, variance."""
    for k in range(0, len(METRIC_PLAN), 3):
        _, where, _ = verdicts[k]
        row, _ = METRIC_PLAN[k].pairs[0]
        yield [row, where, *(verdict for *_, verdict in verdicts[k : k + 3])]


def side(found: Comparison) -> str:
    """Where the interval of a difference lies, if it has one."""
    if 'interval' not in found.found:
        return ''
    if not found.p < LEVEL:
        return 'with 0'
    return 'above 0' if found.size > 0 else 'below 0'


def claim_lines(claim: Claim, column: str, rows: Rows) -> Iterator[list[str]]:
    """What a column says of an exploratory claim, in each reading."""
    labels = {label for pair in pairs_of(claim, rows) for label in pair}
    names = dict.fromkeys(
        name
        for label in labels
        for row in rows[label]
        for name in quantities(row)
        if name == claim.quantity or name.startswith(f'{claim.quantity};')
    )
    for name in sorted(names, key=order):
        where = column + name.removeprefix(claim.quantity)
        for found in comparisons(claim, rows, name):
            yield [where, found.name, found.found, side(found)]


def order(quantity: str) -> tuple[int, str]:
    """Readings of stiffness in the paper's order."""
    at = [k for k, reading in enumerate(READINGS) if reading in quantity]
    return (at[0] if at else 0), quantity.replace('the stage', '')


def rank_lines(column: str, rows: Rows) -> Iterator[list[str]]:
    """Does a high accuracy go with a high TNS (Fig. 7)? In each reading."""
    models = [
        name
        for (name, _) in pairs_of(Claim('', [(m, m) for m in MODELS]), rows)
    ]
    for name in (
        f'TNS; {reading} NSI, {mean}'
        for reading in READINGS
        for mean in MEANS.values()
    ):
        values = {
            m: {
                row['seed']: (q[name], q['Accuracy'])
                for row in rows[m]
                if name in (q := quantities(row))
            }
            for m in models
        }
        values = {m: found for m, found in values.items() if found}
        common = set.intersection(*map(set, values.values())) if values else ()
        if len(values) < 3 or not common:
            continue
        means = [
            np.mean([found[s] for s in sorted(common)], 0)
            for found in values.values()
        ]
        s = 's' * (len(common) > 1)
        yield [
            column + name.removeprefix('TNS'),
            '',
            f'{correlate_ranks(*zip(*means), "models")}; {len(means)} '
            f'models, means over {len(common)} seed{s}',
            '',
        ]


def figure_9_lines(column: str, rows: Rows) -> Iterator[list[str]]:
    """Do NSI and Δt correlate negatively in SE's first stage (Fig. 9)?"""
    kept = [row.get('stiffness') or {} for row in rows.get('SE', ())]
    for reading in READINGS:
        where = f'{column}; {reading} NSI'
        for quantity, text in (
            ('−r over images', "Pearson's over images, mean of blocks"),
            (
                '−r along a trajectory',
                "Pearson's along a trajectory, mean of images",
            ),
        ):
            if found := by_seed(
                rows.get('SE', ()), f'{quantity}; {reading} NSI'
            ):
                mean = compare('', [*found.values()], 4)
                yield [
                    where,
                    f'SE, first stage: −r, {text}',
                    mean.found,
                    side(mean),
                ]
        if blocks := [r for k in kept if (r := first_stage(k).get(reading))]:
            below = ', '.join(str(sum(v < 0 for v in r)) for r in blocks)
            yield [
                where,
                'SE, over images, block by block',
                f'r from {min(map(min, blocks)):+.2f} to '
                f'{max(map(max, blocks)):+.2f}, below 0 in {below} of '
                f'{max(map(len, blocks))} blocks, by seed',
                '',
            ]
        if along := [
            k['along'][reading]['stage 1']
            for k in kept
            if 'stage 1' in k.get('along', {}).get(reading, ())
        ]:
            shares = ', '.join(f'{a["negative"]:.0%}' for a in along)
            yield [
                where,
                'SE, along trajectories',
                f'r below 0 for {shares} of the images, by seed',
                '',
            ]


def exploratory_lines(
    columns: Sequence[tuple[str, Rows]],
) -> dict[str, list[list[str]]]:
    """All claims without a plan, in every column that has their rows."""
    sources = [
        (
            claim.text,
            lambda column, rows, claim=claim: claim_lines(claim, column, rows),
        )
        for claim in CLAIMS
    ]
    sources += [
        ('3a. High accuracy goes with high TNS (Fig. 7)', rank_lines),
        (
            '3d. NSI and attention values correlate negatively in '
            "SENet's first stage (Fig. 9)",
            figure_9_lines,
        ),
    ]
    return {
        text: [
            line for column, rows in columns for line in lines_of(column, rows)
        ]
        for text, lines_of in sorted(sources, key=lambda source: source[0][:2])
    }


def exploratory_text(found: dict[str, list[list[str]]]) -> str:
    """How many differences of each claim have an interval without 0."""
    lines = []
    for text, compared in found.items():
        sides = [line[-1] for line in compared if line[-1]]
        lines.append(
            [
                text,
                *(
                    str(sides.count(kind)) if sides else NONE
                    for kind in ('above 0', 'with 0', 'below 0')
                ),
            ]
        )
    return markdown(['claim', 'above 0', 'with 0', 'below 0'], lines)


def accuracy_table(cells: Sequence[Cell], rows: Rows) -> Table:
    """The paper's figures beside ours, parameters and operations."""
    costs = json.loads(COSTS.read_text())
    metrics = list(dict.fromkeys(m for cell in cells for m in cell.metrics))
    has_paper = any(cell.paper for cell in cells)
    kinds = [
        kind
        for kind in ('best', 'last')
        if any(r[kind] for seeds in rows.values() for r in seeds)
    ]
    header = ['Row', *["#P (M), paper's"] * has_paper, '#P (M)', 'GFLOPs']
    for name in metrics:
        header += [f"{name}, paper's"] * has_paper
        header += [f'{name}, {kind}' for kind in kinds]
    lines = []
    for cell in cells:
        cost = costs.get(cell.name, {})
        line = [cell.row]
        if has_paper:
            line.append(_number(cell.paper.get('Parameters'), 2))
        count, flops = cost.get('parameters'), cost.get('flops')
        line += [
            _number(count and count / 1e6, 2 if (count or 0) > 5e4 else 5),
            _number(flops and flops / 1e9, 3),
        ]
        found = rows.get(cell.row, [])
        for name in metrics:
            metric = METRICS[name]
            if has_paper:
                line.append(_number(cell.paper.get(name), metric.decimals))
            for kind in kinds:
                values = [
                    r[kind]['metrics'][metric.key] * metric.scale
                    for r in found
                    if r[kind]
                ]
                # Of half the seeds it must not pass for that of all.
                line.append(
                    mean_std(values, metric.decimals)
                    if values and len(values) == len(found)
                    else NONE
                )
        lines.append([*line, str(len(found) or NONE)])
    return [*header, 'seeds'], lines


def _number(value: str | float | None, decimals: int) -> str:
    if value is None or isinstance(value, str):
        return value or NONE
    return f'{value:.{decimals}f}'


def variance_table(name: str, rows: Rows) -> Table:
    """Robustness, Section 4.2 of the second paper.

    The variance over the seeds, and that over the validations of the last
    ten epochs, or of a short training's second half, mean over the seeds.
    """
    metric, lines = METRICS[name], []
    for label, seeds in rows.items():
        ends = [r['last']['metrics'][metric.key] * metric.scale for r in seeds]
        curves = [dict(r['curves'].get(metric.key, ())) for r in seeds]
        epochs = sorted(set.intersection(*map(set, curves)))
        if epochs:
            late = min(10, epochs[-1] // 2)
            epochs = [e for e in epochs if e > epochs[-1] - late]
        over = NONE
        if len(epochs) >= LEAST_VALIDATIONS:
            values = metric.scale * np.array(
                [[curve[e] for e in epochs] for curve in curves]
            )
            over = (
                f'{values.var(1, ddof=1).mean():.3g} ({epochs[0]}-'
                f'{epochs[-1]})'
            )
        lines.append(
            [
                label,
                f'{np.var(ends, ddof=1):.3g}' if len(ends) > 1 else NONE,
                over,
                str(len(seeds)),
            ]
        )
    return [
        'Row',
        f'variance of {name} over seeds',
        f'variance of {name} over the last epochs',
        'seeds',
    ], lines


def stiffness_table(rows: Rows) -> Table:
    """Stiffness of the trained networks on the test images, by reading."""
    lines = []
    names = [
        f'{STIFFNESS[key]}; %s NSI, {mean}'
        for key in ('tns', 'p_hat')
        for mean in MEANS.values()
    ]
    names += ['p̂ ≤ 10 %; %s NSI', 'Δt']
    for label, seeds in rows.items():
        found = [quantities(row) for row in seeds]
        for reading in READINGS:
            line = []
            for name in names:
                full = name.replace('%s', reading)
                values = [q[full] for q in found if full in q]
                line.append(
                    NONE
                    if len(values) < len(seeds)
                    else mean_std(values, 2 if name in names[-2:] else 4)
                )
            if line[0] != NONE:
                lines.append([label, reading, *line, str(len(seeds))])
    header = [n.replace('; %s NSI', '') for n in names]
    return ['Row', 'NSI', *header, 'seeds'], lines


def tables_of(own: Sequence[Cell], rows: Rows) -> Iterator[Table]:
    """What is told of a column: metrics, their variances, stiffness."""
    yield accuracy_table(own, rows)
    if any(len(seeds) > 1 for seeds in rows.values()):
        for name in dict.fromkeys(own[0].metrics):
            yield variance_table(name, rows)
    if (stiffness := stiffness_table(rows))[1]:
        yield stiffness


def table_text(columns: Iterable[tuple[str, list[Cell], Rows]]) -> str:
    """A table's columns, with rows that have no results, too."""
    parts = []
    for column, own, rows in columns:
        parts.append(f'### {own[0].table}: {column}\n')
        for header, lines in tables_of(own, rows):
            parts.append(markdown(header, lines, 1 + (header[1] == 'NSI')))
    return '\n'.join(parts)


def table_lines(
    columns: Iterable[tuple[str, list[Cell], Rows]],
) -> Iterator[list[str]]:
    """A line a number of the columns that have results."""
    for column, own, rows in columns:
        if not rows:
            continue
        for (_, *header, _), lines in tables_of(own, rows):
            for row, *cells, seeds in lines:
                reading = ''
                if header[0] == 'NSI':
                    reading = f'; {cells[0]} NSI'
                for name, cell in zip(header, cells):
                    if name != 'NSI' and cell != NONE:
                        quantity = name + reading
                        yield [
                            own[0].table,
                            column,
                            row,
                            quantity,
                            cell,
                            seeds,
                        ]


def warm_columns(results: Path = RESULTS) -> Iterator[tuple[str, Rows]]:
    """What attentions do to trained plain networks, as columns of rows."""
    for folder in sorted((results / 'warm_start').glob('*')):
        rows: Rows = {}
        for seed in read_rows(folder.name, folder.parent):
            for row in seed['rows']:
                step = row['init_step']
                gate = (
                    "paper's gate" if step is None else (f'init_step={step:g}')
                )
                name = f'{row["attention"]}, {gate}'
                values = {
                    'at once': row['before'],
                    **{
                        f'after epoch {epoch}': value
                        for epoch, value in zip(
                            seed['epochs'][:-1], row['after']
                        )
                    },
                    'trained on': row['after'][-1],
                }
                for when, value in values.items():
                    label = f'{name if row["attention"] else "none"}, {when}'
                    rows.setdefault(label, []).append(
                        dict(
                            seed=seed['seed'],
                            last=dict(epoch=0, metrics={row['metric']: value}),
                        )
                    )
        yield f'warm start, {folder.name}', rows


def warm_lines(rows: Rows) -> Iterator[list[str]]:
    """Metrics at once and after further training, mean over the seeds."""
    for label, seeds in rows.items():
        (name,) = (
            n
            for n, m in METRICS.items()
            if m.key in seeds[0]['last']['metrics']
        )
        yield [
            label,
            name,
            mean_std([quantities(row)[name] for row in seeds], 2),
            str(len(seeds)),
        ]


def write_rows(
    path: Path, header: str, lines: Iterable[Sequence[str]]
) -> None:
    """Write values that are set apart by tabs."""
    path.write_text(
        ''.join(
            '\t'.join(line) + '\n' for line in (header.split(', '), *lines)
        ),
        'utf-8',
    )


def write_report(
    tables: dict[str, list[Cell]],
    page: Path,
    results: Path = RESULTS,
    folder: Path = RESULTS,
) -> None:
    """Write what stands between the marks of the page, and its tables.

    Args:
        tables (dict[str, list[Cell]]): The papers' tables, by name.
        page (Path): Gets the verdicts.
        results (Path): Folder of the rows.
        folder (Path): Gets ``planned.tsv``, ``exploratory.tsv``,
            ``warm_starts.tsv`` and ``tables.tsv``.
    """
    read = [list(read_columns(cells, results)) for cells in tables.values()]
    columns = {
        (own[0].table, column): rows
        for found in read
        for column, own, rows in found
    }
    warm = list(warm_columns(results))
    named = [
        (f'{table}, {column}', rows)
        for (table, column), rows in columns.items()
        if rows
    ] + warm

    def rows_of(claim: Claim) -> Rows:
        return columns[claim.table, claim.column]

    planned, tests = planned_lines(PLAN, rows_of)
    metric, metric_tests = planned_lines(METRIC_PLAN, rows_of)
    explored = exploratory_lines(named)
    text = page.read_text('utf-8')
    for mark, part in (
        ('plan', markdown(['claim', 'data and seeds', 'verdict'], planned, 3)),
        (
            'metric plan',
            markdown(
                [
                    'row',
                    'data and seeds',
                    'is more accurate',
                    'has a lower training loss',
                    'varies less',
                ],
                [*metric_lines(metric)],
                5,
            ),
        ),
        ('exploratory', exploratory_text(explored)),
    ):
        text = re.sub(
            f'(?s)(<!-- {mark} -->\n).*?(?=<!-- end -->)',
            lambda match, part=part: f'{match[1]}\n{part}\n',
            text,
        )
    page.write_text(text, 'utf-8')
    write_rows(
        folder / 'planned.tsv',
        'claim, data and seeds, compared, found, p of a difference, '
        'p of one below the margin, level',
        tests + metric_tests,
    )
    write_rows(
        folder / 'exploratory.tsv',
        'claim, data, compared, found, interval',
        (
            [claim, *line]
            for claim, lines in explored.items()
            for line in lines
        ),
    )
    write_rows(
        folder / 'warm_starts.tsv',
        'data, network, metric, mean, seeds',
        ([name, *line] for name, rows in warm for line in warm_lines(rows)),
    )
    write_rows(
        folder / 'tables.tsv',
        'table, data, row, quantity, value, seeds',
        (line for found in read for line in table_lines(found)),
    )
