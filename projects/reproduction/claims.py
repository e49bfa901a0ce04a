"""What is claimed, as data: rows, quantity, direction, seeds.

Claims 1 to 4 are the StepNet paper's (Understanding Self-attention Mechanism
via Dynamical System Perspective, ICCV 2023,
https://arxiv.org/abs/2308.09939) unless they are called ours; the tests are
ours. A claim without a table is looked at in every column that has its rows.
The second paper's (https://arxiv.org/abs/2412.18288) are those of
:data:`METRIC_PLAN` alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .rows import LOSS


class Claim(NamedTuple):
    """One claim: of each pair of rows, the first has more of a quantity.

    Attributes:
        text (str): The claim, with its place in the paper.
        pairs (Sequence): Labels of rows. Of alternatives behind ``|`` the
            first that a column has counts.
        quantity (str): A name of
            :func:`~projects.reproduction.rows.quantities`, or how several
            begin, the readings of stiffness. Defaults to ``'Accuracy'``.
        behind (float): How far the first may fall behind and still count as
            having no less. Defaults to 0.
        variance (bool): Whether the variance over the seeds is compared in
            the quantity's place. Defaults to False.
        margin (float, optional): The smallest difference that matters, of a
            planned claim.
        table (str): The only table, of a planned claim.
        column (str): Its column.
        seeds (range, optional): The planned seeds. Only they count, and there
            is no verdict before all are there.
    """

    text: str
    pairs: Sequence[tuple[str, str]]
    quantity: str = 'Accuracy'
    behind: float = 0.0
    variance: bool = False
    margin: float | None = None
    table: str = ''
    column: str = ''
    seeds: range | None = None


MARGIN = 0.5
"""The smallest difference of accuracy (%) that matters; ours."""

PLAIN, SE_1, STEPNET_1 = (
    'Plain|ResNet|ViT',
    'SE, init_step=1',
    ('StepNet, init_step=1'),
)
STEPNET, SGE = 'StepNet|ViT+StepNet', 'SGE, 4 groups|SGE'
FEW = 'StepNet in the 3 stiffest|StepNet in the 5 stiffest'
TABLE_1 = ('SE', 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA', 'IEBN')
MODELS = (PLAIN, *TABLE_1[:-1], SGE, STEPNET)
"""IEBN's gate lies inside f: its TNS is not the same quantity."""


def against(row: str, *others: str) -> list[tuple[str, str]]:
    """Pairs of one row with others."""
    return [(row, other) for other in others]


def each(rows: Sequence[str], other: str) -> list[tuple[str, str]]:
    """Pairs of rows with one other."""
    return [(row, other) for row in rows]


PLAN = [
    Claim(
        f'StepNet is more accurate than {name} (Table 1)',
        against('StepNet', row),
        margin=MARGIN,
        table='small',
        column='CIFAR-10 JPEG, 10k images, 20 epochs',
        seeds=range(3, 35),
    )
    for name, row in (('the plain network', 'Plain'), ('SE', 'SE'))
]
"""The confirmatory claims, as PLAN.md set them down before their runs. Their
level is divided by their number (Bonferroni)."""


def of_metric_attention(
    table: str, column: str, rest: str, seeds: range
) -> list[Claim]:
    """Accuracy, efficiency and robustness of Section 4.2."""
    ours, *others = (
        f'{name}{rest}' for name in ('Metric-attention', 'Dot product', 'L2')
    )
    text = (
        f'{ours}{"," * bool(rest)} %s than the dot product and L2 '
        '(Section 4.2)'
    )
    where = dict(table=table, column=column, seeds=seeds)
    return [
        Claim(
            text % 'is more accurate',
            against(ours, *others),
            margin=MARGIN,
            **where,
        ),
        Claim(
            text % 'has a lower training loss at the end',
            each(others, ours),
            LOSS,
            **where,
        ),
        Claim(
            text % 'varies less over the seeds',
            each(others, ours),
            variance=True,
            **where,
        ),
    ]


METRIC_PLAN = [
    claim
    for table, column, seeds, counts in (
        ('moon-printed', 'Moon', range(5, 15), (1, 2, 4)),
        ('mnist-printed', 'MNIST', range(1, 11), (1, 2, 4)),
        ('human-seg-printed', 'Human segmentation', range(5), (None,)),
    )
    for count in counts
    for claim in of_metric_attention(
        table,
        column,
        f', {count} module{"s" * (count > 1)}' if count else '',
        seeds,
    )
]
"""The second paper's claims, as projects/metric_attention/PLAN.md set them
down; corrected like :data:`PLAN`, and apart from it."""

WARM = tuple(f'{name}, init_step=1' for name in ('StepNet', 'SE'))
WARM_AT_ONCE = tuple(f'{name}, at once' for name in WARM)
WARM_LATER = tuple(f'{name}, trained on' for name in WARM)


def paper_gate(rows: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of warm starts with plain insertions."""
    return [(row, row.replace('init_step=1', "paper's gate")) for row in rows]


CLAIMS = [
    Claim(
        '1. StepNet is more accurate than the plain network and the '
        'attentions of Table 1 (Tables 1, 2 and 7)',
        against(STEPNET, PLAIN, *TABLE_1),
    ),
    Claim(
        "1. StepNet beside a ViT's attention is more accurate than the ViT "
        '(the second reading of Table 7)',
        [('ViT+StepNet, beside the attention', 'ViT')],
    ),
    Claim(
        '1. StepNet is more accurate than SGE (Table 2)', [('StepNet', SGE)]
    ),
    Claim(
        '1. StepNet has a higher AP than the plain network, SE, ECA and '
        'SGE (Table 3)',
        against('StepNet', PLAIN, 'SE', 'ECA', 'SGE'),
        'AP',
    ),
    Claim(
        '1. StepNet with its gate starting at 1 is more accurate than the '
        'plain network and SE with either gate (ours)',
        against(STEPNET_1, 'Plain', 'SE', SE_1),
    ),
    Claim(
        '2. Both inputs are better than one (Table 4)',
        against(
            'StepNet',
            *(f'StepNet, F({x})' for x in ('x_t', 'x_{t+1}', 'x_{t+1} - x_t')),
        ),
    ),
    Claim(
        "2. StepNet's adaptor is better than others (Table 4; the others "
        'are ours)',
        against('StepNet', 'Ours, no BN', 'Ours, BN before the convolution'),
    ),
    Claim(
        '3b. Attention networks have a larger TNS than the plain one (Fig. 2)',
        each(('SE', 'FCA', 'ECA', 'SRM'), 'Plain'),
        'TNS',
    ),
    Claim(
        '3b. So have those that Fig. 2 does not show (ours)',
        each(('CBAM', 'SEM', SGE, STEPNET), PLAIN),
        'TNS',
    ),
    Claim(
        '3b. So have plain networks that are trained with tricks (Fig. 8)',
        each(
            ('Label smoothing', 'Mixup', 'CutMix', 'Cosine schedule'), 'Plain'
        ),
        'TNS',
    ),
    Claim(
        "3e. SE's NSI changes more from block to block than the plain "
        "network's (Fig. 3)",
        [('SE', 'Plain')],
        'change of NSI',
    ),
    Claim(
        "3e. So it does relative to the network's mean NSI (ours)",
        [('SE', 'Plain')],
        'change of NSI over its mean',
    ),
    Claim(
        '4. Stiff blocks are the ones to choose: StepNet in the 3 stiffest '
        'of 6 blocks is better than in the other 3 (ours)',
        [('StepNet in the 3 stiffest', 'StepNet in the other 3')],
    ),
    Claim(
        '4. Stiff blocks are the ones to choose: StepNet in the stiffest '
        'tenth of 51 blocks is better than in a random and in the least '
        'stiff tenth (ours)',
        against(
            'StepNet in the 5 stiffest',
            'StepNet in a random 5',
            'StepNet in the 5 least stiff',
        ),
    ),
    Claim(
        '4. A few blocks are enough (lottery ticket): StepNet in them is '
        f'no more than {MARGIN} points behind StepNet in all blocks',
        [(FEW, 'StepNet')],
        behind=MARGIN,
    ),
    Claim(
        '4. A few blocks are enough (lottery ticket): StepNet in them is '
        'better than the plain network',
        [(FEW, 'Plain')],
    ),
    Claim(
        "5. A warm start (ours) keeps a pretrained network's accuracy at "
        'once, where a plain insertion loses it',
        paper_gate(WARM_AT_ONCE) + each(WARM_AT_ONCE, 'none, at once'),
    ),
    Claim(
        '5. A warm start (ours) keeps its lead over a plain insertion '
        'after further training',
        paper_gate(WARM_LATER),
    ),
    Claim(
        f'5. A warm start (ours) keeps up: no more than {MARGIN} points '
        'behind the plain network trained on likewise',
        each(WARM_LATER, 'none, trained on'),
        behind=MARGIN,
    ),
]
"""Exploratory: intervals, no verdicts."""
