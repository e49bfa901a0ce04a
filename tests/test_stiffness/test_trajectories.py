import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmstepnet.stiffness import (
    FIELDS,
    READINGS,
    Trajectories,
    total_neural_stiffness,
    total_stiffness_proportion,
)
from mmstepnet.version import __version__

SETTINGS = dict(model='net', split='val', reading='unit', dataset_size=4)


def arrays(n=4, length=3):
    rng = np.random.default_rng(0)
    return dict(
        **{name: rng.uniform(0, 1, (n, length)) for name in FIELDS},
        stages=np.array([0, 0, 1])[:length],
        blocks=[f'layer1.{k + 1}' for k in range(length)],
        excluded=['layer1.0'],
        settings=SETTINGS)


def test_round_trip(tmp_path):
    path = tmp_path / 'new' / 'stiffness_val.npz'
    given = arrays()
    given['adaptive'] = torch.tensor(given['adaptive'])
    Trajectories(**given).save(path)
    record = Trajectories.load(path)
    for name in FIELDS:
        assert getattr(record, name).dtype == np.float32
        np.testing.assert_allclose(
            getattr(record, name), given[name], rtol=1e-6)
    assert record.stages.tolist() == [0, 0, 1]
    assert record.blocks == given['blocks']
    assert record.excluded == ['layer1.0']
    assert record.settings == dict(SETTINGS, mmstepnet=__version__)
    # What was loaded can be saved again, and nothing else lies about.
    record.save(path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_settings_that_json_does_not_know(tmp_path):
    path = tmp_path / 'stiffness_val.npz'
    given = dict(SETTINGS, weights=tmp_path / 'net.pth', epoch=np.int64(3),
                 mean=np.array([0.5, 0.25]))
    record = replace(Trajectories(**arrays()), settings=given)
    record.save(path)
    found = Trajectories.load(path).settings
    assert found == dict(SETTINGS, weights=str(tmp_path / 'net.pth'), epoch=3,
                         mean=[0.5, 0.25], mmstepnet=__version__)
    record = replace(record, settings=dict(SETTINGS, stages={1, 2}))
    with pytest.raises(TypeError, match=r'lists and dicts of them, got \{1'):
        record.save(path)
    assert Trajectories.load(path).settings == found


def test_contract_on_disk(tmp_path):
    """Plain arrays that NumPy reads without pickle."""
    path = tmp_path / 'stiffness_val.npz'
    Trajectories(**arrays()).save(path)
    with np.load(path, allow_pickle=False) as file:
        assert set(file) == {
            'adaptive', 'unit', 'returned', 'x_norm', 'f_norm', 'step_mean',
            'stages', 'blocks', 'excluded', 'settings'
        }
        assert json.loads(str(file['settings']))['split'] == 'val'
        assert file['blocks'].dtype.kind == 'U'


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'stiffness_val.npz'
    Trajectories(**arrays()).save(path)
    before = path.read_bytes()

    def disk_full(file, **kwargs):
        file.write(b'half')
        raise OSError('disk full')

    monkeypatch.setattr(np, 'savez_compressed', disk_full)
    with pytest.raises(OSError, match='disk full'):
        Trajectories(**arrays(n=2)).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize('change, message', [
    (dict(unit=np.ones((4, 2))), r'unit has shape \(4, 2\), expected'),
    (dict(unit=np.full((4, 3), np.nan)), 'unit holds NaN'),
    (dict(unit=np.full((4, 3), -1)), 'unit is a norm or a ratio'),
    (dict(stages=[0, 1]), 'stages must be 3 integers'),
    (dict(stages=[0, 1, 0.5]), 'stages must be 3 integers'),
    (dict(blocks=['a']), 'blocks must be 3 names'),
    (dict(settings=dict(model='net')), 'lack split, reading, dataset_size'),
    (dict(settings=dict(SETTINGS, reading='mine')), "got 'mine'"),
    (dict(settings='val'), "settings must be a mapping, got 'val'"),
    ({n: np.ones((0, 3)) for n in FIELDS}, 'is the data set empty'),
])
def test_bad_recordings_are_not_made(change, message):
    with pytest.raises(ValueError, match=message):
        Trajectories(**{**arrays(), **change})


def test_damaged_files(tmp_path):
    path = tmp_path / 'stiffness_val.npz'
    with pytest.raises(FileNotFoundError, match='no stiffness record at'):
        Trajectories.load(path)
    Trajectories(**arrays()).save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[60:90] = bytes(30)
    encrypted = bytearray(whole)
    encrypted[whole.rindex(b'PK\1\2') + 8] |= 1
    for damage in (b'', b'hello', whole[:len(whole) // 2], whole[:-30],
                   bytes(flipped), bytes(encrypted)):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match='stiffness_val.npz is damaged'):
            Trajectories.load(path)
    with path.open('wb') as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match='stiffness_val.npz is damaged'):
        Trajectories.load(path)


def test_small_files_that_unpack_to_large_ones(tmp_path, monkeypatch):
    """Only a recording's own members are read, and their sizes are asked."""
    path = tmp_path / 'stiffness_val.npz'
    given = {**arrays(), 'settings': np.array(json.dumps(SETTINGS))}
    zeros = np.zeros(2**25, np.float32)
    np.savez_compressed(path, **given, extra=zeros)
    read = []
    read_array = np.lib.format.read_array

    def counted(*args, **kwargs):
        read.append(read_array(*args, **kwargs))
        return read[-1]

    # NumPy's archive looks it up in the module that it was written in.
    monkeypatch.setitem(
        type(np.load(path)).__getitem__.__globals__['format'].__dict__,
        'read_array', counted)
    Trajectories.load(path)
    assert len(read) == len(given) and max(a.nbytes for a in read) < 1000
    read.clear()
    np.savez_compressed(path, **{**given, 'unit': zeros})
    with pytest.raises(ValueError, match='would unpack to 1342'):
        Trajectories.load(path)
    assert not read


def test_other_npz_files(tmp_path):
    path = tmp_path / 'stiffness_val.npz'
    np.savez(path, adaptive=np.ones((2, 2)))
    with pytest.raises(ValueError, match='no stiffness record: it lacks unit'):
        Trajectories.load(path)
    given = arrays()
    for settings, message in (('{', 'settings are no JSON'),
                              ('[]', 'stiffness_val.npz: settings must be a'),
                              ('{}', 'settings lack model')):
        np.savez(path, **{**given, 'settings': np.array(settings)})
        with pytest.raises(ValueError, match=message):
            Trajectories.load(path)
    given['settings'] = np.array(json.dumps(SETTINGS))
    np.savez(path, **{**given, 'unit': np.full((4, 3), np.inf)})
    with pytest.raises(ValueError, match='unit holds NaN'):
        Trajectories.load(path)
    np.savez(path, **{**given, 'blocks': np.array([{}] * 3, object)})
    with pytest.raises(ValueError, match='damaged'):
        Trajectories.load(path)


def test_name(tmp_path):
    with pytest.raises(ValueError, match=r'named \*.npz'):
        Trajectories(**arrays()).save(tmp_path / 'stiffness_val.npy')


def test_a_file_of_version_0_1(tmp_path):
    """Written by NumPy alone, as that version did."""
    given = arrays()
    path = tmp_path / 'stiffness_val.npz'
    np.savez_compressed(
        path,
        **{name: given[name].astype(np.float32) for name in FIELDS},
        stages=given['stages'],
        blocks=np.array(given['blocks'], np.str_),
        excluded=np.array(given['excluded'], np.str_),
        settings=np.array(json.dumps({**SETTINGS, 'mmstepnet': '0.1.0'})))
    found = Trajectories.load(path)
    np.testing.assert_array_equal(
        found.nsi('returned'), given['returned'].astype(np.float32))
    assert found.settings['mmstepnet'] == '0.1.0'


def test_every_reading_and_mean():
    found = Trajectories(**arrays(50))
    values = set()
    for reading in READINGS:
        nsi = arrays(50)[reading].astype(np.float32)
        np.testing.assert_array_equal(found.nsi(reading), nsi)
        for mu in ('stage', 'all'):
            tns, proportion = (
                function(nsi, found.stages, mu).mean() for function in
                (total_neural_stiffness, total_stiffness_proportion))
            assert found.tns(reading, mu) == tns
            assert found.proportion(reading, mu) == proportion
            values |= {tns, proportion}
    assert len(values) == 12
    with pytest.raises(ValueError, match="adaptive, unit.* got 'own'"):
        found.tns('own')
    with pytest.raises(ValueError, match="stage, all, got 'own'"):
        found.proportion('unit', 'own')


def test_it_is_frozen():
    given = arrays()
    found = Trajectories(**given)
    with pytest.raises(AttributeError):
        found.unit = found.adaptive
    with pytest.raises(ValueError, match='read-only'):
        found.unit[0] = 1
    given['unit'] = given['unit'].astype(np.float32)
    found, before = Trajectories(**given), given['unit'].copy()
    given['unit'] += 1
    np.testing.assert_array_equal(found.unit, before)
    found = replace(found, settings=dict(SETTINGS, split='test'))
    assert found.settings['split'] == 'test' and len(found) == 4


def test_band():
    given = arrays(101)
    ordered = np.sort(given['unit'].astype(np.float32), axis=0)
    mean, low, high = Trajectories(**given).band('unit')
    np.testing.assert_allclose(mean, ordered.sum(0) / 101, rtol=1e-5)
    np.testing.assert_allclose(low, ordered[10])
    np.testing.assert_allclose(high, ordered[90])


@pytest.mark.parametrize('excluded, expected', [
    (['a.0', 'b.0', 'c.0', 'd.0'], ['stage 2', 'stage 3', 'stage 4']),
    (['b.0', 'c.0', 'd.0'], ['stage 1', 'stage 2', 'stage 3']),
    # The blocks were chosen one by one.
    ([], ['stage 1', 'stage 2', 'stage 3']),
])
def test_names_of_stages(excluded, expected):
    found = Trajectories(**{
        **arrays(), 'stages': [0, 1, 2], 'excluded': excluded,
        'blocks': ['b.1', 'c.1', 'd.1']})
    assert list(found.stage_names.values()) == expected
    assert found.single_block_stages


def test_correlations_with_the_attention_value():
    given = {name: np.random.default_rng(1).random((20, 7)) for name in FIELDS}
    rng = np.random.default_rng(2)
    given['step_mean'] = rng.random((20, 7))
    given['step_mean'][:, 1] = 0.25
    found = Trajectories(
        **given, stages=[3, 3, 3, 3, 1, 1, 1], excluded=[],
        blocks=[f'b.{i}' for i in range(7)], settings=SETTINGS)
    nsi, step = given['unit'], given['step_mean']
    expected = [np.nan if i == 1 else np.corrcoef(nsi[:, i], step[:, i])[0, 1]
                for i in range(7)]
    np.testing.assert_allclose(
        found.block_correlations('unit'), expected, rtol=1e-5)
    assert found.adaptive_blocks == [0, 2, 3, 4, 5, 6]
    along = found.trajectory_correlations('unit')
    assert list(along) == ['stage 1', 'stage 2', 'all stages']
    for name, part in (('stage 2', slice(4, 7)), ('all stages', slice(0, 7))):
        np.testing.assert_allclose(
            along[name],
            [np.corrcoef(a[part], b[part])[0, 1] for a, b in zip(nsi, step)],
            rtol=1e-4)
