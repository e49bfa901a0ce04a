"""A recording: its file, what it computes, what it prints; trainings."""

import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from mmstepnet.stiffness import (
    FIELDS,
    READINGS,
    Trajectories,
    block_stiffness,
    find_recordings,
    read_trainings,
)
from mmstepnet.stiffness.training import distinct_names, find_networks
from mmstepnet.version import __version__
from tests.utils import RECORDING_SETTINGS, recording_arrays


def test_round_trip(tmp_path, monkeypatch):
    """Plain arrays, which NumPy reads without pickle; whole or not there."""
    path = tmp_path / 'new' / 'stiffness_val.npz'
    given = recording_arrays(
        weights=tmp_path / 'net.pth',
        epoch=np.int64(3),
        mean=np.array([0.5, 0.25]),
    )
    given['adaptive'] = torch.tensor(given['adaptive'])
    Trajectories(**given).save(path)
    found = Trajectories.load(path)
    for name in FIELDS:
        assert getattr(found, name).dtype == np.float32
        np.testing.assert_allclose(
            getattr(found, name), given[name], rtol=1e-6
        )
        with pytest.raises(ValueError, match='read-only'):
            getattr(found, name)[0] = 1
    for name in ('stages', 'blocks', 'excluded'):
        assert list(getattr(found, name)) == list(given[name])
    assert found.settings == dict(
        RECORDING_SETTINGS,
        weights=str(tmp_path / 'net.pth'),
        epoch=3,
        mean=[0.5, 0.25],
        mmstepnet=__version__,
    )
    with np.load(path, allow_pickle=False) as file:
        assert {*file} == {f.name for f in fields(found)}
        assert json.loads(str(file['settings']))['split'] == 'val'
    before = path.read_bytes()

    def full(descriptor):
        assert os.fstat(descriptor).st_size > 1000  # all has left Python
        raise OSError('No space left')

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
        Trajectories(**recording_arrays(n=2)).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_files_that_are_no_recordings(tmp_path):
    path = tmp_path / 'stiffness_val.npz'
    with pytest.raises(FileNotFoundError, match='stiffness_val.npz'):
        Trajectories.load(path)
    Trajectories(**recording_arrays()).save(path)
    whole = path.read_bytes()
    flipped = whole[:60] + bytes(30) + whole[90:]
    contents = [b'', b'hello', whole[: len(whole) // 2], flipped]
    good = {
        **recording_arrays(),
        'settings': np.array(json.dumps(RECORDING_SETTINGS)),
    }
    for change in (
        dict(settings=np.array('{')),
        dict(settings=np.array('{}')),
        dict(unit=np.full((4, 3), np.inf)),
        dict(blocks=np.array([{}] * 3, object)),
        None,
    ):
        np.savez(path, **({**good, **change} if change else dict(unit=1)))
        contents.append(path.read_bytes())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match='stiffness_val.npz is damaged'):
            Trajectories.load(path)
    # As version 0.1 wrote it.
    old = np.array(json.dumps({**RECORDING_SETTINGS, 'mmstepnet': '0.1.0'}))
    np.savez_compressed(path, **{**good, 'settings': old})
    assert Trajectories.load(path).settings['mmstepnet'] == '0.1.0'


def test_what_it_prints():
    found = Trajectories(**recording_arrays())
    assert str(found) == repr(found)
    size, tns, stiffest = str(found).splitlines()
    assert size == 'net (val): 4 samples, 3 blocks'
    assert [float(n) for n in re.findall(r'\d\.\d+', tns)] == [
        pytest.approx(value, rel=1e-3)
        for value in (found.tns('unit'), *found.tns_interval('unit'))
    ]
    assert found.stiffest_blocks(1, 'unit')[0][0] in stiffest
    html = replace(
        found, settings=dict(RECORDING_SETTINGS, model='a<b')
    )._repr_html_()
    assert html.count('<tr>') == 3 and 'a&lt;b' in html
    # One counted block a stage, as in ResNet-18.
    alone = replace(found, stages=[0, 1, 2])
    assert alone.single_block_stages and not found.single_block_stages
    assert (
        f'0 by definition, because one block a stage is counted; '
        f'{alone.tns("unit", "all"):.4g} with the mean of all' in str(alone)
    )
    scores = block_stiffness(found.unit, [0, 1, 2], 'all')
    assert alone.stiffest_blocks(1, 'unit')[0][:2] == (
        found.blocks[scores.argmax()],
        scores.max(),
    )
    still = replace(found, unit=0 * found.unit)
    assert '0, because every branch f is 0' in str(still)


def test_kinds_of_steps():
    """The smaller branches are stiff beside those of their kind alone."""
    ends = 'attn_step', 'mlp_step'
    blocks = [f'blocks.{k}.{end}' for k in (1, 2, 3) for end in ends]
    nsi = np.array([[0.1, 2.0, 0.3, 1.0, 0.2, 1.0]])
    found = replace(
        Trajectories(**recording_arrays(1, 6)), unit=nsi, blocks=blocks
    )
    assert found.kinds == {'attn_step': [0, 2, 4], 'mlp_step': [1, 3, 5]}
    name, stiffness, mean = found.stiffest_blocks(1, 'unit', 'attn_step')[0]
    assert name == 'blocks.2.attn_step'
    assert stiffness == pytest.approx((0.3 / 0.2 - 1) * 0.3)
    assert mean == pytest.approx(0.3)
    assert found.stiffest_blocks(1, 'unit')[0][0] == 'blocks.1.mlp_step'
    _, _, attention, mlp = str(found).splitlines()
    assert attention.startswith('stiffest of attn_step: blocks.2.attn_step')
    assert mlp.startswith('stiffest of mlp_step: blocks.1.mlp_step')
    with pytest.raises(ValueError, match='kind must be one of attn_step'):
        found.stiffest_blocks(kind='conv_step')
    # Numbers, one kind alone, and steps of which a block ran twice.
    for blocks, kinds in (
        (['a.1', 'a.2'], ['']),
        (['a.1.mlp_step', 'a.2.mlp_step'], ['']),
        (['a.1.step1', 'a.1.step2'], ['step1', 'step2']),
        (['a.attn_step', 'a.mlp_step#2'], ['attn_step', 'mlp_step']),
        (['a.1', 'b.1.attn_step'], ['', 'attn_step']),
    ):
        few = Trajectories(**{**recording_arrays(1, 2), 'blocks': blocks})
        assert [*few.kinds] == kinds


def test_correlations_with_the_attention_value():
    given = recording_arrays(20, 7)
    # One gate is constant up to the rounding of float32.
    given['step_mean'][:, 1] = 0.25 + 3e-8 * (given['unit'][:, 1] > 0.5)
    found = Trajectories(**{**given, 'stages': [3, 3, 3, 3, 3, 1, 1]})
    nsi, step = given['unit'], given['step_mean']
    expected = [
        np.nan if i == 1 else np.corrcoef(nsi[:, i], step[:, i])[0, 1]
        for i in range(7)
    ]
    np.testing.assert_allclose(
        found.block_correlations('unit'), expected, rtol=1e-5
    )
    assert found.adaptive_blocks == [0, 2, 3, 4, 5, 6]
    along = found.trajectory_correlations('unit')
    assert list(along) == ['stage 1', 'all stages']  # two are no trajectory
    for name, part in (('stage 1', slice(0, 5)), ('all stages', slice(0, 7))):
        np.testing.assert_allclose(
            along[name],
            [np.corrcoef(a[part], b[part])[0, 1] for a, b in zip(nsi, step)],
            rtol=1e-4,
        )


def test_tns_and_its_interval():
    """By the formula of one stage, and by scipy."""
    found = Trajectories(**recording_arrays(200, 4))
    for reading in READINGS:
        nsi = found.nsi(reading).astype(float)
        excess = nsi / nsi.mean(1, keepdims=True) - 1
        each = excess.max(1) * nsi.max(1)
        assert found.tns(reading) == pytest.approx(each.mean())
        assert found.proportion(reading) == pytest.approx(
            (excess.clip(0) * nsi).mean()
        )
        expected = bootstrap(
            (each,), np.mean, method='percentile', random_state=1
        ).confidence_interval
        interval = found.tns_interval(reading)
        assert (
            interval
            == found.tns_interval(reading)
            == pytest.approx(
                expected, abs=0.08 * (expected.high - expected.low)
            )
        )
    one = Trajectories(**recording_arrays(1, 4))
    assert one.tns_interval() == (pytest.approx(one.tns()),) * 2


def test_recordings_of_trainings(tmp_path):
    """Ten epochs, written in another order, a test, and files of weights."""
    folder = tmp_path / 'stiffness'
    for epoch in (10, *range(1, 10)):
        Trajectories(
            **recording_arrays(30, 4, epoch, epoch=epoch, iter=7 * epoch)
        ).save(folder / f'stiffness_val_epoch_{epoch}.npz')
    Trajectories(**recording_arrays(30, 4)).save(folder / 'stiffness_test.npz')
    # Of other blocks: it cannot be laid over these.
    Trajectories(**recording_arrays(30, 5, epoch=11)).save(
        folder / 'stiffness_val_epoch_11.npz'
    )
    os.utime(folder / 'stiffness_val_epoch_10.npz', (9e9, 9e9))
    found = find_recordings(tmp_path)
    assert len(found) == 12 and found[-1].stem == 'stiffness_val_epoch_10'
    ((name, training),) = read_trainings(found[::-1]).items()
    assert name == 'net, val'
    assert [t.checkpoint for t in training] == [
        ('epoch', k) for k in range(1, 11)
    ]
    for k, checkpoint in enumerate(training, 1):
        np.testing.assert_array_equal(
            checkpoint.unit, Trajectories(**recording_arrays(30, 4, k)).unit
        )
    # A test in a folder of its own is the last one, and hides no training.
    test = Trajectories(**recording_arrays(30, 4, epoch=10))
    test.save(tmp_path / 'test' / 'stiffness' / 'stiffness_test.npz')
    os.utime(tmp_path / 'test/stiffness/stiffness_test.npz', (1e10, 1e10))
    found = find_recordings(tmp_path)
    assert len(found) == 13 and found[-1].stem == 'stiffness_test'
    assert [*read_trainings(found)] == ['net, val']
    # Folders are trainings; weights stay in the order given.
    paths = [
        tmp_path / folder / f'stiffness_{name}.npz'
        for folder in 'xy'
        for name in ('late', 'early')
    ]
    for k, path in enumerate(paths):
        Trajectories(**recording_arrays(weights=f'{k}.pth')).save(path)
    assert [
        [t.checkpoint[1] for t in training]
        for training in read_trainings(paths).values()
    ] == [['0.pth', '1.pth'], ['2.pth', '3.pth']]
    assert read_trainings(paths[::2]) == {}
    # Weights with steps and without are two trainings.
    stepped = [tmp_path / 'x' / f'{k}+s.npz' for k in range(2)]
    for k, path in enumerate(stepped):
        arrays = recording_arrays(weights=f'{k}.pth', steps='s')
        Trajectories(**arrays).save(path)
    both = read_trainings([*paths[:2], *stepped])
    assert [len(training) for training in both.values()] == [2, 2]
    assert [*both] == ['net, val', 'net, val, steps of s']
    with pytest.raises(FileNotFoundError, match='holds no recording'):
        find_recordings(tmp_path / 'nowhere')


def test_networks_of_a_folder(tmp_path):
    """Of the command's each recording, of a work directory the last one."""
    names = 'net.epoch_10', 'net.epoch_2', 'another'
    paths = [tmp_path / 'out' / f'{name}.npz' for name in names]
    for k, path in enumerate(paths):
        Trajectories(**recording_arrays()).save(path)
        os.utime(path, (k, k))
    assert find_networks(tmp_path / 'out') == paths
    assert find_networks(paths[1]) == paths[1:2]
    job = tmp_path / 'job'
    Trajectories(**recording_arrays()).save(job / 'run' / 'stiffness_val.npz')
    assert find_networks(job) == [job]
    (tmp_path / 'empty').mkdir()
    assert find_networks(tmp_path / 'empty') == [tmp_path / 'empty']


def test_names_of_files_and_of_the_folder_that_one_stands_in():
    assert distinct_names([Path('.')]) == ['']
    paths = [Path('a/run_0.1.npz'), Path('b/run_0.1.npz')]
    assert distinct_names(paths) == ['a.run_0.1', 'b.run_0.1']
