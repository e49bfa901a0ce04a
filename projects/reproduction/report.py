"""RESULTS.md: verdicts, intervals and tables from the rows."""

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


def planned_text(
    claims: Sequence[Claim], rows_of: Callable[[Claim], Rows]
) -> str:
    """Verdicts of planned claims, at a level corrected for their number."""
    level, verdicts, texts = LEVEL / len(claims), [], []
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
        lines = [[c.name, c.found] for c in found]
        for c in found:
            line = f'is there a difference? p = {c.p:.2g}'
            if claim.margin is not None:
                line += (
                    f'; is it smaller than {claim.margin} points? '
                    f'p = {c.p_small:.2g}'
                )
            lines.append([c.name, f'{line} (level {level:.2g})'])
        texts.append(
            f'**{claim.text}; {where}: {verdict}.**\n\n'
            + markdown(['compared', 'found'], lines, 2)
        )
    return '\n'.join(
        [markdown(['claim', 'data and seeds', 'verdict'], verdicts, 3), *texts]
    )


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
            yield [where, found.name, found.found]
            where = ''


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
                yield [
                    where,
                    f'SE, first stage: −r, {text}',
                    compare('', [*found.values()], 4).found,
                ]
                where = ''
        if blocks := [r for k in kept if (r := first_stage(k).get(reading))]:
            below = ', '.join(str(sum(v < 0 for v in r)) for r in blocks)
            yield [
                '',
                'SE, over images, block by block',
                f'r from {min(map(min, blocks)):+.2f} to '
                f'{max(map(max, blocks)):+.2f}, below 0 in {below} of '
                f'{max(map(len, blocks))} blocks, by seed',
            ]
        if along := [
            k['along'][reading]['stage 1']
            for k in kept
            if 'stage 1' in k.get('along', {}).get(reading, ())
        ]:
            shares = ', '.join(f'{a["negative"]:.0%}' for a in along)
            yield [
                '',
                'SE, along trajectories',
                f'r below 0 for {shares} of the images, by seed',
            ]


def exploratory_text(columns: Sequence[tuple[str, Rows]]) -> str:
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
    texts = []
    for text, lines_of in sorted(sources, key=lambda source: source[0][:2]):
        lines = [
            line for column, rows in columns for line in lines_of(column, rows)
        ]
        texts.append(
            f'**{text}**\n\n'
            + markdown(['data', 'compared', 'found'], lines, 3)
        )
    return '\n'.join(texts)


def accuracy_table(cells: Sequence[Cell], rows: Rows) -> str:
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
    return markdown([*header, 'seeds'], lines)


def _number(value: str | float | None, decimals: int) -> str:
    if value is None or isinstance(value, str):
        return value or NONE
    return f'{value:.{decimals}f}'


def variance_table(name: str, rows: Rows) -> str:
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
    return markdown(
        [
            'Row',
            f'variance of {name} over seeds',
            'over the last epochs',
            'seeds',
        ],
        lines,
    )


def stiffness_table(rows: Rows) -> str:
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
    if not lines:
        return ''
    return markdown(
        ['Row', 'NSI', *(n.replace('; %s NSI', '') for n in names), 'seeds'],
        lines,
        2,
    )


def table_text(
    columns: Iterable[tuple[str, list[Cell], Rows]], all_rows: bool = True
) -> str:
    """A table's columns; ``all_rows`` shows those without results, too."""
    parts = []
    for column, own, rows in columns:
        if not (rows or all_rows):
            continue
        parts += [f'### {own[0].table}: {column}\n', accuracy_table(own, rows)]
        if any(len(seeds) > 1 for seeds in rows.values()):
            parts += [
                variance_table(name, rows)
                for name in dict.fromkeys(own[0].metrics)
            ]
        parts += [text] if (text := stiffness_table(rows)) else []
    return '\n'.join(parts)


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


def warm_table(rows: Rows) -> str:
    """Metrics at once and after further training, mean over the seeds."""
    lines = []
    for label, seeds in rows.items():
        (name,) = (
            n
            for n, m in METRICS.items()
            if m.key in seeds[0]['last']['metrics']
        )
        lines.append(
            [
                label,
                name,
                mean_std([quantities(row)[name] for row in seeds], 2),
                str(len(seeds)),
            ]
        )
    return markdown(['network', 'metric', 'mean', 'seeds'], lines, 2)


def write_report(
    tables: dict[str, list[Cell]], page: Path, results: Path = RESULTS
) -> None:
    """Write what stands between the marks of the page anew."""
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

    text = page.read_text('utf-8')
    for mark, part in (
        ('plan', planned_text(PLAN, rows_of)),
        ('metric plan', planned_text(METRIC_PLAN, rows_of)),
        ('exploratory', exploratory_text(named)),
        (
            'warm start',
            '\n'.join(
                f'**{name}**\n\n{warm_table(rows)}' for name, rows in warm
            ),
        ),
        (
            'tables',
            '\n'.join(
                part
                for found in read
                if (part := table_text(found, all_rows=False))
            ),
        ),
    ):
        text = re.sub(
            f'(?s)(<!-- {mark} -->\n).*?(?=<!-- end -->)',
            lambda match, part=part: f'{match[1]}\n{part}\n',
            text,
        )
    page.write_text(text, 'utf-8')
