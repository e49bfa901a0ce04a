"""Scores of blocks as bars."""

from mmstepnet.figures.block_scores import (
    draw_block_scores,
    save_block_scores,
)

SCORES = {
    'ablation': {'a.0': 0.5, 'a.1': 0.1, 'a.2': 0.2, 'a.3': 0.3},
    'NSI': {'a.1': 2.0, 'a.2': 1.0, 'a.3': 3.0},
}


def test_bars_and_correlation(tmp_path):
    figure = draw_block_scores(SCORES, 'a network')
    lost, nsi = figure.axes
    assert [bar.get_height() for bar in lost.patches] == [.5, .1, .2, .3]
    assert [bar.get_x() + bar.get_width() / 2 for bar in nsi.patches] == [
        1, 2, 3]
    # Ranks 2, 1, 3 against 1, 2, 3: 1 - 6 · 2 / 24.
    assert nsi.get_title('left') == 'NSI, Spearman ρ = 0.50'
    assert [text.get_text() for text in nsi.get_xticklabels()] == list(
        SCORES['ablation'])
    save_block_scores(SCORES, tmp_path / 'blocks.png')
    assert (tmp_path / 'blocks.png').stat().st_size > 5000
