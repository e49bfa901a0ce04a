"""What is claimed, as data: rows, quantity, direction, seeds.

Claims 1 to 4 are the StepNet paper's (Understanding Self-attention Mechanism
via Dynamical System Perspective, ICCV 2023,
https://arxiv.org/abs/2308.09939) unless they are called ours; the tests are
ours. A claim names no table: it is looked at in every column of every table
that has its rows. It gets a verdict in two cases: in the paper's own tables,
at the paper's five seeds, and where :data:`PLAN` says so. The second paper's
(https://arxiv.org/abs/2412.18288) are those of :data:`METRIC_PLAN` alone.
"""

from dataclasses import dataclass

DIFFERENCE, VARIANCE, RANKS, SHARE, CORRELATION = (
    'difference', 'variance', 'ranks', 'share', 'correlation')
"""Kinds of claims, see :class:`Claim`."""

TNS = 'tns'
LOSS = 'training loss'
"""Quantities beside the metrics; the loss is that of the last epoch."""


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        text (str): The claim, with its place in the paper.
        rows (tuple[str, ...]): Rows that it compares with each other; of a
            difference none, see ``pairs``.
        pairs (tuple[tuple[str, str], ...]): Pairs of rows, of which the
            first has more of the quantity than the second.
        quantity (str): A metric of ``METRICS``, the loss, or TNS, which is
            looked at in each reading. Defaults to ``'Accuracy'``.
        kind (str): ``'difference'``, of paired seeds. Or ``'variance'``: the
            first varies more over the seeds than the second. Or
            ``'ranks'``: rows
            of a higher accuracy have a higher TNS. Or ``'share'``: few
            blocks are stiff, which is described. Or ``'correlation'``: NSI
            and attention values correlate negatively, over the images and
            along each trajectory.
        behind (float): How far the first may fall behind and still count as
            having no less. Defaults to 0.
    """

    text: str
    rows: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    quantity: str = 'Accuracy'
    kind: str = DIFFERENCE
    behind: float = 0.0


@dataclass(frozen=True)
class PlannedClaim:
    """A claim that is judged where and when it was planned.

    Attributes:
        claim (Claim): Of the kind ``'difference'`` or ``'variance'``.
        table (str): Such as ``'small'``.
        column (str): Of the table.
        seeds (range): Those that count, and all must be there.
    """

    claim: Claim
    table: str
    column: str
    seeds: range


MARGIN = 0.5
"""The smallest difference of accuracy (%) or AP that matters; ours."""

PAPER_TABLES = ('1', '2', '3', '4', '7')
PAPER_SEEDS = range(5)
"""The paper's tables and its number of runs, which it states beforehand."""

LABELS = {
    'plain': ('Plain', 'ResNet', 'Org', 'ViT'),
    'StepNet': ('StepNet', 'ViT+StepNet'),
    'both inputs': ('F(x_{t+1}, x_t)', 'StepNet'),
    'x_t': ('F(x_t)', 'StepNet, F(x_t)'),
    'x_{t+1}': ('F(x_{t+1})', 'StepNet, F(x_{t+1})'),
    'f': ('F(x_{t+1} - x_t)', 'StepNet, F(x_{t+1} - x_t)'),
    # Of the narrow ResNet-20, where its default of one channel a group
    # trains on the digits alone.
    'SGE': ('SGE, 4 groups', 'SGE'),
    'some blocks': ('StepNet in the 3 stiffest', 'StepNet in the 5 stiffest',
                    'Five blocks, spread evenly'),
    'all blocks': ('All blocks', 'StepNet'),
    'no block': ('No block', 'Plain'),
}
"""Labels by which tables know a row: the first that a column has. Other rows
are known by one label everywhere."""

OTHER_TNS = {
    'IEBN': "IEBN's gate lies inside f and its β outside of the gate. The "
            'other attentions multiply all of f. So its NSI and TNS are not '
            'the same quantity, and claims that compare TNS leave it out.',
}
"""Rows whose TNS is not comparable, and why."""

TABLE_1 = ('SE', 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA', 'IEBN')
FIG_2 = ('SE', 'FCA', 'ECA', 'SRM')
"""The networks that the paper calls high-performance, Section 2.3."""

MODELS = ('plain', 'SE', 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA', 'SGE', 'StepNet')
TRICKS = ('Label smoothing', 'Mixup', 'CutMix', 'Cosine schedule')
STEPNET_1, SE_1 = 'StepNet, init_step=1', 'SE, init_step=1'
STIFF, REST = 'StepNet in the 3 stiffest', 'StepNet in the other 3'
STIFF_TENTH, RANDOM_TENTH, REST_TENTH = (
    'StepNet in the 5 stiffest', 'StepNet in a random 5',
    'StepNet in the 5 least stiff')


def against(row: str, *others: str) -> tuple[tuple[str, str], ...]:
    """Pairs of one row with others."""
    return tuple((row, other) for other in others)


def each(rows: tuple[str, ...], other: str) -> tuple[tuple[str, str], ...]:
    """Pairs of rows with one other."""
    return tuple((row, other) for row in rows)


PLAN = tuple(
    PlannedClaim(Claim(f'StepNet is more accurate than {name} (Table 1)',
                       pairs=against('StepNet', row)),
                 'small', 'CIFAR-10 JPEG, 10k images, 20 epochs',
                 range(3, 35))
    for name, row in (('the plain network', 'plain'), ('SE', 'SE')))
"""The confirmatory claims, as PLAN.md set them down before their runs. Their
level is divided by their number (Bonferroni)."""

PRINTED = tuple(
    (f'{name}-printed', column, f', {modules} module{"s" * (modules > 1)}',
     seeds)
    for name, column, seeds in (('moon', 'Moon', range(5, 15)),
                                ('mnist', 'MNIST', range(1, 11)))
    for modules in (1, 2, 4)) + (
        ('human-seg-printed', 'Human segmentation', '', range(5)), )
"""Table, column, what follows a row's name, and planned seeds."""


def _of_metric_attention(rest: str) -> tuple[Claim, ...]:
    ours, *others = (f'{name}{rest}' for name in (
        'Metric-attention', 'Dot product', 'L2'))
    subject = f'{ours},' if rest else ours
    text = f'{subject} %s than the dot product and L2 (Section 4.2)'
    return (
        Claim(text % 'is more accurate', pairs=against(ours, *others)),
        Claim(text % 'has a lower training loss at the end',
              pairs=each(others, ours), quantity=LOSS),
        Claim(text % 'varies less over the seeds', pairs=each(others, ours),
              kind=VARIANCE))


METRIC_PLAN = tuple(
    PlannedClaim(claim, table, column, seeds)
    for table, column, rest, seeds in PRINTED
    for claim in _of_metric_attention(rest))
"""The second paper's claims, as projects/metric_attention/PLAN.md set them
down; corrected like :data:`PLAN`, and apart from it."""

_WARM_AT_ONCE, _WARM_LATER = (
    tuple((f'{name}, init_step=1, {when}', f"{name}, paper's gate, {when}")
          for name in ('StepNet', 'SE')) for when in ('at once', 'trained on'))

CLAIMS = (
    Claim('1. StepNet is more accurate than the plain network and the '
          'attentions of Table 1 (Tables 1, 2 and 7)',
          pairs=against('StepNet', 'plain', *TABLE_1)),
    Claim("1. StepNet beside a ViT's attention is more accurate than the ViT "
          '(the second reading of Table 7)',
          pairs=(('ViT+StepNet, beside the attention', 'plain'), )),
    Claim('1. StepNet is more accurate than SGE (Table 2)',
          pairs=against('StepNet', 'SGE')),
    Claim('1. StepNet has a higher AP than the plain network, SE, ECA and '
          'SGE (Table 3)',
          pairs=against('StepNet', 'plain', 'SE', 'ECA', 'SGE'),
          quantity='AP'),
    Claim('1. StepNet with its gate starting at 1 is more accurate than the '
          'plain network and SE with either gate (ours)',
          pairs=against(STEPNET_1, 'plain', 'SE', SE_1)),
    Claim('2. Both inputs are better than one (Table 4)',
          pairs=against('both inputs', 'x_t', 'x_{t+1}', 'f')),
    Claim("2. StepNet's adaptor is better than others (Table 4; the others "
          'are ours)',
          pairs=against('both inputs', 'Ours, shared MLP',
                        'Ours, depthwise convolution', 'Ours, no BN',
                        'Ours, BN before the convolution',
                        'Ours, mean and deviation')),
    Claim('3a. High accuracy goes with high TNS (Fig. 7)',
          rows=MODELS, quantity=TNS, kind=RANKS),
    Claim('3b. Attention networks have a larger TNS than the plain one '
          '(Fig. 2)', pairs=each(FIG_2, 'plain'), quantity=TNS),
    Claim('3b. So have those that Fig. 2 does not show (ours)',
          pairs=each(('CBAM', 'SEM', 'SGE', 'StepNet'), 'plain'),
          quantity=TNS),
    Claim('3b. So have plain networks that are trained with tricks (Fig. 8)',
          pairs=each(TRICKS, 'plain'), quantity=TNS),
    Claim('3c. The stiffness proportion p̂ is mostly at most 10 % (Fig. 6)',
          rows=MODELS, quantity='few_stiff', kind=SHARE),
    Claim("3d. NSI and attention values correlate negatively in SENet's "
          'first stage (Fig. 9)',
          rows=('SE', ), quantity='correlation', kind=CORRELATION),
    Claim('4. Stiff blocks are the ones to choose: StepNet in the 3 stiffest '
          'of 6 blocks is better than in the other 3 (ours)',
          pairs=against(STIFF, REST)),
    Claim('4. Stiff blocks are the ones to choose: StepNet in the stiffest '
          'tenth of 51 blocks is better than in a random and in the least '
          'stiff tenth (ours)',
          pairs=against(STIFF_TENTH, RANDOM_TENTH, REST_TENTH)),
    Claim('4. A few blocks are enough (lottery ticket): StepNet in them is '
          f'no more than {MARGIN} points behind StepNet in all blocks',
          pairs=against('some blocks', 'all blocks'), behind=MARGIN),
    Claim('4. A few blocks are enough (lottery ticket): StepNet in them is '
          'better than the plain network',
          pairs=against('some blocks', 'no block')),
    Claim("5. A warm start (ours) keeps a pretrained network's accuracy at "
          'once, where a plain insertion loses it',
          pairs=(*_WARM_AT_ONCE, *each(tuple(w for w, _ in _WARM_AT_ONCE),
                                       'none, at once'))),
    Claim('5. A warm start (ours) keeps its lead over a plain insertion '
          'after further training',
          pairs=_WARM_LATER),
    Claim(f'5. A warm start (ours) keeps up: no more than {MARGIN} points '
          'behind the plain network trained on likewise',
          pairs=each(tuple(w for w, _ in _WARM_LATER), 'none, trained on'),
          behind=MARGIN),
)
