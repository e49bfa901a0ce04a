"""Results and the sheets made of them."""

import json
import statistics

import pytest

from projects.reproduction import (
    Cell,
    Figure,
    list_sheet,
    load_results,
    save_result,
    summarise,
    table_sheets,
)
from projects.reproduction.complexity import Complexity

from .made_results import result, save


@pytest.fixture
def cells(tmp_path):
    return [
        Cell('1', 'SE', 'X', ('Accuracy', ), {'Accuracy': Figure(94.26, 0.14)},
             1.91, tmp_path / 'net.py'),
        Cell('1', 'Lost', 'X', ('Accuracy', ), {'Accuracy': Figure(90)}),
    ]


def measure(config):
    return Complexity(1_912_345, 511_000_000, (32, 32), 'whole model')


def test_sheet(tmp_path, cells):
    values = [93.1, 94.7, 95.2]
    save(tmp_path, *(result(s, v, best=(s + 3, v + 1))
                     for s, v in enumerate(values)))
    sheet, = table_sheets(cells, tmp_path, measure)
    mean, std = sum(values) / 3, statistics.stdev(values)
    assert sheet.rows[0] == [
        'SE', '1.91', '1.91', '0.511', '94.26 ± 0.14',
        f'{mean + 1:.2f} ± {std:.2f}', '3-5', f'{mean:.2f} ± {std:.2f}', '9',
        '3'
    ]
    assert sheet.rows[1][4] == '90.00' and sheet.rows[1][-1] == '–'
    assert any('Lost: cannot be run' in note for note in sheet.notes)
    assert '| SE | 1.91 |' in sheet.to_markdown()


def test_best_needs_every_seed(tmp_path, cells):
    save(tmp_path, result(0, 90., best=(1, 91.)), result(1, 90.))
    assert table_sheets(cells, tmp_path, measure)[0].rows[0][5] == '–'


def test_no_column_for_the_best_where_validation_is_not_on_the_test_data(
        tmp_path, cells):
    save(tmp_path, result(0, 90.), result(1, 92.))
    sheet, = table_sheets(cells, tmp_path, measure)
    assert sheet.header[5:] == ['Accuracy, ours, last', 'epoch', 'seeds']
    assert sheet.rows[0][5:] == ['91.00 ± 1.41', '9', '2']
    assert not any('Best' in note for note in sheet.notes)


def test_listing(tmp_path, cells):
    save(tmp_path, result(4, 90.))
    assert list_sheet({'1': cells}, tmp_path).rows == [
        ['1', 'SE', 'X', 'net', 'Accuracy', '94.26 ± 0.14', '90.00', '1'],
        ['1', 'Lost', 'X', '–', 'Accuracy', '90.00', '–', '–'],
    ]


def test_seeds_of_different_settings_are_not_averaged(tmp_path):
    save(tmp_path, result(0, 90.), result(1, 91., cfg_options=['a=1']))
    with pytest.raises(ValueError, match='a=1'):
        load_results(tmp_path, 'net')


@pytest.mark.parametrize('text, match', [
    ('{"config": ', 'no JSON'), (json.dumps(dict(config='net')), 'seed'),
    ('null', 'lacks config'),
    (json.dumps(result(0, float('nan'))), 'NaN is no finite number'),
    (json.dumps(result(1, 90.)), 'net, seed 1; copies'),
    (json.dumps(result(0, 90., config='other')), 'of other')])
def test_damaged_results(tmp_path, text, match):
    path = tmp_path / 'net' / 'seed_0.json'
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        load_results(tmp_path, 'net')


def test_results_are_finite(tmp_path):
    path = tmp_path / 'net' / 'seed_0.json'
    with pytest.raises(ValueError, match='finite'):
        save_result(path, result(0, float('inf')))
    assert not path.exists()


def test_one_seed_has_no_deviation():
    assert summarise([90.]) == Figure(90., None)
