"""Metafiles, configs and the paper's parameter counts agree."""

import json
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from projects.reproduction.report import COSTS
from projects.reproduction.tables import METRICS, read_tables
from tests.documents import CONFIGS, ROOT

TABLES = read_tables(ROOT)


def models():
    for index in (
        ROOT / 'model-index.yml',
        *ROOT.glob('projects/*/model-index.yml'),
    ):
        for path in yaml.safe_load(index.read_text())['Import']:
            metafile = yaml.safe_load((ROOT / path).read_text())
            collections = {c['Name'] for c in metafile['Collections']}
            for model in metafile['Models']:
                assert model['In Collection'] in collections
                yield model


def test_every_config_has_one_entry_and_every_entry_a_config():
    entries = [ROOT / model['Config'] for model in models()]
    assert sorted(entries) == CONFIGS
    assert all(Path(m['Config']).stem == m['Name'] for m in models())


def test_readmes_show_the_metafiles_figures():
    for cell in (c for cells in TABLES.values() for c in cells if c.config):
        folder = cell.config.parent
        if folder.name == 'configs':
            folder = folder / 'coco'
        figures = ', '.join(
            f'{name} {figure}'
            if isinstance(figure, str)
            else f'{name} {figure:.{METRICS[name].decimals}f}'
            for name, figure in cell.paper.items()
            if name in METRICS
        )
        row = f'| {cell.table} | {cell.row} |'
        assert any(
            f'[{cell.name}]' in line and row in line and figures in line
            for line in (folder / 'README.md').read_text().splitlines()
        ), cell


@pytest.mark.parametrize(
    'table, rows, columns',
    [('1', 9, 3), ('2', 8, 2), ('3', 9, 2), ('4', 13, 3), ('7', 2, 3)],
)
def test_the_papers_tables_are_whole(table, rows, columns):
    cells = TABLES[table]
    assert len({cell.row for cell in cells}) == rows
    assert len({cell.column for cell in cells}) == columns
    assert len(cells) == rows * columns


# CBAM's reference form gives 1.91 and 1.93; that is reported, not fitted.
@pytest.mark.parametrize('cell', TABLES['1'], ids=lambda c: c.name)
def test_parameters_are_the_papers(cell):
    cfg = Config.fromfile(cell.config)
    init_default_scope(cfg.default_scope)
    count = sum(p.numel() for p in MODELS.build(cfg.model).parameters())
    assert count == json.loads(COSTS.read_text())[cell.name]['parameters']
    ours, papers = f'{count / 1e6:.2f}', f'{cell.paper["Parameters"]:.2f}'
    assert (ours == papers) is (cell.row != 'CBAM')


def test_costs_are_of_the_configs():
    """Those of before the counting program went; later ones have none."""
    costs = json.loads(COSTS.read_text())
    assert len(costs) > 150 and set(costs) <= {
        c.name for cells in TABLES.values() for c in cells
    }
    plain, ours = (
        costs[f'resnet50_{name}_imagenet'] for name in ('plain', 'stepnet')
    )
    # Torchvision's own count of the plain network, in multiply-adds.
    assert plain['flops'] == pytest.approx(2 * 4.09e9, rel=0.02)
    more = [
        f'{100 * (ours[k] / plain[k] - 1):.2f} %'
        for k in ('parameters', 'flops')
    ]
    assert (
        'StepNet adds {} of parameters and {} of operations to'.format(*more)
        in (ROOT / 'configs' / 'imagenet' / 'README.md').read_text()
    )
