"""What is to be corrected in the text of the two papers, with numbers.

    python -m projects.errata     # the lines of projects/errata.tsv

The first paper is Understanding Self-attention Mechanism via Dynamical System
Perspective (https://arxiv.org/abs/2308.09939), the second Towards
understanding how attention mechanism works in deep learning
(https://arxiv.org/abs/2412.18288).
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm
from scipy.spatial.distance import cdist, pdist
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from mmstepnet.stiffness import (
    neural_stiffness_index,
    stiffness_aware_index,
    total_neural_stiffness,
)
from projects.reproduction.tables import read_tables

RESULTS = Path(__file__).parent / 'reproduction' / 'results'


class Erratum(NamedTuple):
    """One place of a paper.

    Attributes:
        paper (str): ``'first'`` or ``'second'``.
        place (str): Where.
        printed (str): What stands there.
        meant (str): What is right, or probably meant.
        found (str): How it was found.
        number (Callable): Computes the number, as text.
    """

    paper: str
    place: str
    printed: str
    meant: str
    found: str
    number: Callable[[], str]


RATES = np.array([-5.0, -2.0, -1.0])
STATE = np.array([1.0, 1.0, -1.0])
DRIVE = np.array([0.5, -0.5, 0.5])
"""u' = λ u + a in the eigenvectors' coordinates, at u = c: SI is 5."""


def sai_over_si(
    rates: np.ndarray, state: np.ndarray, drive: np.ndarray
) -> float:
    """SAI of two exact states of u' = λ u + a, over SI.

    Args:
        rates (ndarray): λ, (n,).
        state (ndarray): c, (n,).
        drive (ndarray): a, (n,).
    """
    si = np.abs(rates).max()
    system = np.zeros((len(rates) + 1,) * 2)
    system[:-1, :-1], system[:-1, -1] = np.diag(rates), drive
    t = 1e-7 / si
    later = (expm(system * t) @ np.append(state, 1.0))[:-1]
    return stiffness_aware_index(np.stack([state, later]), [0, t])[0] / si


def root_of_theorem_2(
    rates: np.ndarray,
    state: np.ndarray,
    drive: np.ndarray,
    printed: bool = False,
) -> float:
    """√(c + Q) of Theorem 2 from its closed form, Eq. 30.

    Args:
        rates (ndarray): λ, (n,), the largest |λ| first.
        state (ndarray): c, (n,).
        drive (ndarray): a, (n,).
        printed (bool): Without c_i in the second sum. Defaults to False.
    """
    mixed = drive * rates if printed else drive * state * rates
    terms = (state * rates) ** 2 + 2 * mixed + drive**2
    return np.sqrt(terms.sum() / (state @ state)) / np.abs(rates[0])


def eq_30() -> str:
    measured = sai_over_si(RATES, STATE, DRIVE)
    right, printed = (
        root_of_theorem_2(RATES, STATE, DRIVE, wrong)
        for wrong in (False, True)
    )
    return (
        f'SAI / SI at SI 5: measured {measured:.5f}, with c_i '
        f'{right:.5f}, as printed {printed:.5f}'
    )


def limit_of_q() -> str:
    share = STATE[0] ** 2 / (STATE @ STATE)
    slow, fast = (
        root_of_theorem_2(k * RATES, STATE, k * DRIVE) ** 2 - share
        for k in (1, 1000)
    )
    return f'Q is {slow:.4f} at SI 5 and {fast:.4f} at SI 5000'


def unsquared() -> str:
    weights = STATE**2 / (STATE @ STATE)
    return (
        f'under the root, at SI 5: as printed {weights @ RATES:.3f}, '
        f'squared {weights @ RATES**2:.3f}'
    )


def small_attention() -> str:
    x, f = np.array([[3.0, 4.0]]), np.array([[1.0, -2.0]])
    found = (
        neural_stiffness_index(x, x + f * step, step)[0] for step in (0.1, 0.9)
    )
    return 'NSI at attention 0.1 and 0.9: {:.4f} and {:.4f}'.format(*found)


def one_large_step() -> np.ndarray:
    """NSI of a state that doubles once and then rests, (1, 51)."""
    nsi = np.zeros((1, 51))
    nsi[0, 0] = 1.0
    return nsi


def eq_14() -> str:
    # Norms lie between k_1 = 1 and k_2 = 2, and a = b = 1.
    return (
        f'51 blocks, norms 1 to 2: NSI {one_large_step().min():g} where '
        f'the bound is {(2 - 1) / 2:g}'
    )


def eq_22() -> str:
    nsi = one_large_step()
    whole = total_neural_stiffness(nsi, np.zeros(nsi.shape[1]))[0]
    # Eq. 18 for these norms.
    largest = max(2 * (1 + 2) / 1 - 1, 1 + 2 / 1)
    within = min(largest, nsi.shape[1] - 1) * min(largest, nsi.max())
    return f'the same: TNS is {whole:g}, of which Eq. 22 integrates {within:g}'


def odd_activation() -> str:
    rng = np.random.default_rng(0)
    sent = rng.standard_normal((2, 20))

    def asymmetry(sigma: Callable, sign: int) -> float:
        f = -sigma(sent[0][:, None] + sign * sent[0])
        return (f - f.T).max()

    return (
        f'largest f(x, y) − f(y, x), α₁ = −α₂: {asymmetry(np.tanh, 1):g} '
        f'with tanh and {asymmetry(np.exp, 1):g} with exp, which is not '
        f'odd; α₁ = α₂ with tanh: {asymmetry(np.tanh, -1):.2f}'
    )


def c_means() -> str:
    x, label = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    start = np.stack([x[label == k].mean(0) for k in range(3)])
    printed, bezdek = (
        pdist(fuzzy_centres(x, start, power)).min() for power in (1, 2)
    )
    return (
        '178 wines, m = 2, 100 steps: the two nearest centres are '
        f'{printed:.2f} apart as printed, '
        f"{bezdek:.2f} with Bezdek's power"
    )


def fuzzy_centres(
    x: np.ndarray, centres: np.ndarray, power: int
) -> np.ndarray:
    """Fuzzy c-means with m = 2 after 100 steps.

    Args:
        x (ndarray): Points, (N, d).
        centres (ndarray): To start from, (C, d).
        power (int): Of memberships in the centres: 1 as printed, 2 as
            Bezdek's.

    Returns:
        ndarray: Centres, (C, d).
    """
    for _ in range(100):
        member = cdist(centres, x) ** -2
        weight = (member / member.sum(0)) ** power
        centres = weight @ x / weight.sum(1, keepdims=True)
    return centres


def two_means() -> str:
    result = json.loads(
        (RESULTS / 'resnet164_se_cifar10-10k' / 'seed_0.json').read_text()
    )
    tns = result['stiffness']['tns']['adaptive']
    return (
        f'TNS, seed 0: {tns["stage"]:.2f} over the stage, '
        f'{tns["all"]:.2f} over all blocks'
    )


def senet() -> str:
    rng = np.random.default_rng(0)
    first, second = (
        rng.standard_normal(shape) / shape[1] ** 0.5
        for shape in ((64, 4), (4, 64))
    )
    printed = first @ np.maximum(second @ rng.standard_normal((64, 9)), 0)
    meant = 1 / (1 + np.exp(-printed.mean(1)))
    return (
        '64 channels, 9 places, random weights: as printed up to '
        f'{printed.max():.1f} and one value a place, with both up to '
        f'{meant.max():.2f} and one a channel'
    )


def not_the_best() -> str:
    """Where another attention of the paper's Tables 1 to 3 is ahead."""
    tables, found, count = read_tables(), [], 0
    for cells in (tables[k] for k in '123'):
        for ours in (c for c in cells if c.row == 'StepNet'):
            for name in ours.metrics:
                rows = {
                    c.row: float(str(c.paper[name]).split()[0])
                    for c in cells
                    if c.column == ours.column
                }
                best = max(rows, key=rows.get)
                count += 1
                if best != 'StepNet':
                    found.append(
                        f'{name} of {ours.column}, {best} '
                        f'{rows[best]} against {rows["StepNet"]}'
                    )
    return f'{len(found)} of {count}: {"; ".join(found)}'


def constant(text: str) -> Callable[[], str]:
    return lambda: text


ERRATA = (
    Erratum(
        'first',
        'Eq. 30 and the lines above it',
        'the second sum of Q has 2 a_i λ_i',
        '2 a_i c_i λ_i, as the square of λ_i c_i + a_i gives',
        'an affine system with a known solution',
        eq_30,
    ),
    Erratum(
        'first',
        'Eq. 30, Theorem 2',
        'Q converges to 0 when SI is large',
        'Q does so if λ_1 alone grows. It does not if all of λ and a '
        'grow, as in another unit of time',
        'the same system, 1000 times as fast',
        limit_of_q,
    ),
    Erratum(
        'first',
        'above Eq. 31',
        'the sum of c_i² λ_i',
        'the sum of c_i² λ_i², as in the next line',
        'the same system',
        unsquared,
    ),
    Erratum(
        'first',
        'Definition 1',
        'states x_1 to x_L, and t from 0 to L − 1',
        'states x_0 to x_L: L blocks have one state more',
        'read',
        constant('at t = 0 the step needs x_0'),
    ),
    Erratum(
        'first',
        '§2.4, below Eq. 7',
        'in SENet F(·) = W_1 ReLU(W_2 ·)',
        'F(·) = σ(W_1 ReLU(W_2 GAP(·))). The next paragraph rests on σ: '
        'it says that Δt is below 1',
        'both, with random weights',
        senet,
    ),
    Erratum(
        'first',
        '§2.4, last sentence',
        'a small attention value gives a large NSI',
        'x̂ − x = f ⊗ F is divided by F again: NSI is ‖f‖ / ‖x‖, whatever F is',
        'Eq. 4 with two attention values',
        small_attention,
    ),
    Erratum(
        'first',
        'Eq. 14, and with it Eq. 16 to 18',
        'NSI is at least (k_2 − k_1) / (b k_2)',
        'k_1 and k_2 bound the norms of all states, so two neighbours '
        'may be equal. M_1 ≤ L − 1 holds without any bound on norms',
        'a state that doubles once and then rests',
        eq_14,
    ),
    Erratum(
        'first',
        'Eq. 22',
        'the integral over the square up to M̃',
        'the integral leaves out two strips, and the one with M_1 > M̃ '
        'is not empty. Theorem 1 holds nevertheless: L − 1 and max NSI '
        'bound the two sides',
        'the same state',
        eq_22,
    ),
    Erratum(
        'first',
        'Definition 2 and Eq. 15',
        'μ is the mean of the stage, and the mean of all L blocks',
        'one of them; the paper does not say which',
        'both were computed for ResNet-164 with SE',
        two_means,
    ),
    Erratum(
        'first',
        '§3.1, p̂',
        'Fig. 4',
        'Fig. 2, whose degrees M it has',
        'read',
        constant('Fig. 4 is the network'),
    ),
    Erratum(
        'first',
        '§3.1, three-body motions',
        '[40], which is on batch normalisation',
        '[41], on stiffness in Hamiltonian systems',
        'read',
        constant('91.4 % and 4.2 % stand there'),
    ),
    Erratum(
        'first',
        '§3, image classification',
        'Tables 1 and 6',
        'Tables 1 and 2; Table 6 has the settings',
        'read',
        constant('Table 2 has the 16 accuracies on ImageNet'),
    ),
    Erratum(
        'first',
        '§3, image classification',
        'StepNet is consistently ahead of the other attentions',
        'in most columns of Tables 1 to 3, not in all',
        "the tables' own figures",
        not_the_best,
    ),
    Erratum(
        'first',
        'Table 1, FCA on CIFAR-100',
        '2.21 above ResNet',
        '2.22',
        "the table's own accuracies",
        lambda: f'76.52 − 74.30 = {76.52 - 74.30:.2f}',
    ),
    Erratum(
        'first',
        'Appendix F, COCO',
        '40,670 test images',
        'val2017; 40,670 is the size of the test set, whose labels are '
        'not public',
        'the code that the paper defers to',
        constant('val2017 has 5,000 images'),
    ),
    Erratum(
        'first',
        'Eq. 32',
        'f_3(x) ⊗ F, with ⊗ the Hadamard product of Eq. 7',
        'the product of matrices F f_3(x) over the tokens, as '
        'F = softmax(QKᵀ) has it. That is no step for each value of f_3',
        'read',
        constant('5 tokens of width 3: F is 5 × 5, f_3 is 5 × 3'),
    ),
    Erratum(
        'second',
        'Example 2',
        'f is symmetric if α₁ = −α₂ and σ is odd',
        'f is so for any σ, because σ sees the sum of both points',
        'values of f',
        odd_activation,
    ),
    Erratum(
        'second',
        '§2.2.2, fuzzy c-means',
        'centres by memberships, rows normalised',
        'centres by memberships to the power m (Bezdek et al., 1984). '
        'Without it centres fall together',
        "both, from the classes' means",
        c_means,
    ),
)


HEADER = 'paper', 'where', 'printed', 'meant', 'found by', 'number'


def table() -> str:
    """All of them with their numbers, set apart by tabs."""
    lines = [HEADER, *((*each[:-1], each.number()) for each in ERRATA)]
    return '\n'.join(map('\t'.join, lines))


def page() -> str:
    """What the page shows of them, as a Markdown table."""
    lines = [HEADER[:4], ['---'] * 4, *(each[:4] for each in ERRATA)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    print(table())


if __name__ == '__main__':
    main()
