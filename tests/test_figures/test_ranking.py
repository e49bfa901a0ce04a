from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.stats import rankdata

from mmstepnet.figures.ranking import (
    correlate_ranks,
    draw_ranking,
    rank_correlation,
    ranking_figure,
    runs_by_metric,
)


def with_metric(run, metric, split='val', measured='val'):
    return replace(
        run,
        accuracy=replace(run.accuracy, metric=metric, split=split),
        settings={**run.settings, 'split': measured})


def test_rank_correlations(runs):
    found = rank_correlation(runs)
    tns = np.array([run.tns for run in runs])
    accuracy = np.array([run.accuracy.value for run in runs])
    pairs = list(combinations(range(len(runs)), 2))
    signs = [np.sign((tns[i] - tns[j]) * (accuracy[i] - accuracy[j]))
             for i, j in pairs]
    assert found.kendall == pytest.approx(sum(signs) / len(pairs))
    ranks = [np.argsort(np.argsort(v)) for v in (tns, accuracy)]
    assert found.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert f'Kendall τ = {found.kendall:.3f}' in str(found)


@pytest.mark.parametrize(
    'accuracy', [(3, 2, 1), (2, 1, 3, 5), (1, 3, 2, 2, 5), (1, 1, 2, 3, 3)])
def test_p_values_are_the_share_of_orders_as_extreme(accuracy):
    """Three runs in order are no proof: p = 1/3, both ways."""
    tns = list(range(len(accuracy)))
    found = correlate_ranks(tns, accuracy, 'runs')
    pairs = list(combinations(tns, 2))
    ranks = rankdata(accuracy)

    def concordance(order):
        return sum(np.sign((order[i] - order[j]) * (ranks[i] - ranks[j]))
                   for i, j in pairs)
    for statistic, p in (
            (lambda order: np.corrcoef(order, ranks)[0, 1], found.spearman_p),
            (concordance, found.kendall_p)):
        values = np.array([statistic(order) for order in permutations(tns)])
        upper = np.mean(values >= statistic(tns) - 1e-9)
        lower = np.mean(values <= statistic(tns) + 1e-9)
        assert p == pytest.approx(min(1, 2 * min(upper, lower)))


def test_too_few_or_constant(runs, run):
    assert 'at least 3 runs' in rank_correlation(runs[:2])
    assert 'all runs have TNS' in rank_correlation([run, run, run])


def test_metrics_are_not_mixed(runs):
    mixed = [with_metric(runs[0], 'coco/bbox_mAP'),
             with_metric(runs[1], 'accuracy/top1', 'test', 'test'),
             with_metric(runs[2], 'accuracy/top1', 'val', 'test'), *runs[3:5],
             replace(runs[5], accuracy=None)]
    groups = runs_by_metric(mixed)
    assert groups == {
        'coco/bbox_mAP, val split': mixed[:1],
        'accuracy/top1, test split': mixed[1:2],
        'accuracy/top1, val split; TNS, test split': mixed[2:3],
        'accuracy/top1, val split': mixed[3:5],
    }
    titles = [ax.get_ylabel() for ax in draw_ranking(groups).axes]
    assert titles == list(groups)


def test_figure_7(runs):
    figure = ranking_figure('accuracy', runs)
    assert [t.name for t in figure.data] == ['plain', 'se', 'stepnet']
    assert figure.data[1].x == tuple(run.tns for run in runs[2:4])
    assert figure.data[1].y == tuple(run.accuracy.value for run in runs[2:4])
    assert figure.layout.title.text == str(rank_correlation(runs))
