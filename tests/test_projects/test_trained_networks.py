"""What the projects on other people's networks make of rows, and tell."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip('sklearn')
from projects.decisions import digits, placement  # noqa: E402
from projects.pruning import fine_tuning  # noqa: E402
from projects.recipes import pretrained  # noqa: E402
from projects.recipes.rows import read, run_missing  # noqa: E402
from tests.documents import ROOT  # noqa: E402


def recipes():
    return pretrained.table(read(
        ROOT / 'projects/recipes/rows.tsv')).splitlines()


def placed():
    return list(placement.differences(read(placement.ROWS)))


def warned():
    rows = read(digits.FOLDER / 'alarm.tsv')
    return [line for left_out in (False, True) for line in digits.alarms(
        rows, left_out).splitlines()[2:-2]]


def ranked():
    rows = read(digits.FOLDER / 'architectures.tsv')
    return (digits.ranks(rows).splitlines()[2:-2]
            + digits.within_depths(rows).splitlines()[4:])


def tuned():
    return list(fine_tuning.differences(read(fine_tuning.ROWS)))


@pytest.mark.parametrize('page, made', [
    ('recipes', recipes), ('decisions', placed), ('decisions', warned),
    ('decisions', ranked), ('pruning', tuned)])
def test_results_are_those_of_the_rows(page, made):
    """The numbers of the page, but for signs and spaces."""
    text = (ROOT / 'projects' / page / 'RESULTS.md').read_text('utf-8')
    text = text.replace('−', '-').replace('∞', 'inf')
    numbers = [re.findall(r'-?(?:\d+\.\d+|inf)', line) for line in made()]
    assert sum(map(len, numbers)) > 7
    for line in numbers:
        assert all(number in text for number in line), line


def test_rows_are_measured_once(tmp_path):
    """And where they go is there before anything is measured."""
    path, measured = tmp_path / 'new' / 'rows.tsv', []

    def measure(name, seed):
        assert path.parent.is_dir()
        measured.append((name, seed))
        return [0.5]

    for count in (1, 2):
        rows = run_missing(path, (('a', k) for k in range(count)), measure)
        assert rows == read(path)
    assert measured == [('a', 0), ('a', 1)]
    assert rows == [['a', '0', '0.5'], ['a', '1', '0.5']]


def test_tuning_is_compared_seed_by_seed():
    """Seeds that are not complete in all networks do not count."""
    rows = [[str(seed), network, order, str(count),
             str(loss + 0.1 * seed), '90', str(loss / 2), '90', '']
            for seed in (0, 1)
            for network, count in zip(fine_tuning.RESNETS, (2, 4, 6))
            for order, loss in zip(fine_tuning.ORDERS,
                                   (1.0, 1.5, 1.25, 3.0, 0.5))]
    rows.append(['2', 'resnet20', 'adaptive', '2', '9', '9', '9', '9', ''])
    found = list(fine_tuning.differences(rows))[2:]
    assert len(found) == 4
    assert found[0].endswith('| influence | 2 | -0.500 ± 0.000 | '
                             '-0.250 ± 0.000 |')
    assert found[3].endswith('| ablation | 2 | 0.500 ± 0.000 | '
                             '0.250 ± 0.000 |')


def test_blocks_are_removed_from_a_copy(tmp_path, monkeypatch):
    """Against a pass by hand that leaves the last two blocks out."""
    monkeypatch.setattr(fine_tuning.digits, 'EPOCHS', 1)
    model, *_, (x, labels), _ = fine_tuning.trained_digits(7)
    before = copy.deepcopy(model.state_dict())
    *values, removed = fine_tuning.measure(tmp_path, 7, 'digits', 'last', 2)
    assert removed == 'layer3.2 layer3.1'
    with torch.no_grad():
        state = F.relu(model.bn1(model.conv1(x)))
        for block in (*model.layer1, *model.layer2, model.layer3[0]):
            state = block(state)
        scores = model.linear(state.mean((2, 3)))
    assert float(values[0]) == pytest.approx(
        F.cross_entropy(scores, labels).item(), abs=1e-4)
    assert values[2] != values[0]  # it was tuned, and the model was not:
    assert all(torch.equal(model.state_dict()[key], value)
               for key, value in before.items())
