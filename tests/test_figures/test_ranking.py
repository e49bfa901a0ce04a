from dataclasses import replace

from mmstepnet.figures.ranking import (
    draw_ranking,
    rank_correlation,
    ranking_figure,
    runs_by_metric,
)
from mmstepnet.stiffness import correlate_ranks
from tests.test_figures.conftest import changed


def with_metric(run, metric, split='val', measured='val'):
    run = replace(
        run, accuracy=replace(run.accuracy, metric=metric, split=split))
    return changed(
        run, settings={**run.trajectories.settings, 'split': measured})


def test_rank_correlations(runs):
    assert rank_correlation(runs) == correlate_ranks(
        [run.tns for run in runs], [run.accuracy.value for run in runs],
        'runs')


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
    axes = draw_ranking(groups).axes
    assert [ax.get_title().splitlines()[0] for ax in axes] == list(groups)
    assert [ax.get_ylabel() for ax in axes] == [
        name.partition(',')[0] for name in groups]


def test_figure_7(runs):
    figure = ranking_figure(runs)
    assert [t.name for t in figure.data] == ['plain', 'se', 'stepnet']
    assert figure.data[1].x == tuple(run.tns for run in runs[2:4])
    assert figure.data[1].y == tuple(run.accuracy.value for run in runs[2:4])
    assert figure.layout.title.text == str(rank_correlation(runs))
