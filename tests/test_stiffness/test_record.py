import json

import numpy as np
import pytest
import torch

from mmstepnet.stiffness import load_record, save_record
from mmstepnet.stiffness.trajectory import FIELDS
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
    save_record(path, **given)
    record = load_record(path)
    for name in FIELDS:
        assert record[name].dtype == np.float32
        np.testing.assert_allclose(record[name], given[name], rtol=1e-6)
    assert record['stages'].tolist() == [0, 0, 1]
    assert record['blocks'].tolist() == given['blocks']
    assert record['excluded'].tolist() == ['layer1.0']
    assert record['settings'] == dict(SETTINGS, mmstepnet=__version__)
    # What was loaded can be saved again, and nothing else lies about.
    save_record(path, **record)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_contract_on_disk(tmp_path):
    """Plain arrays that NumPy reads without pickle."""
    path = tmp_path / 'stiffness_val.npz'
    save_record(path, **arrays())
    with np.load(path, allow_pickle=False) as file:
        assert set(file) == {
            'adaptive', 'unit', 'returned', 'x_norm', 'f_norm', 'step_mean',
            'stages', 'blocks', 'excluded', 'settings'
        }
        assert json.loads(str(file['settings']))['split'] == 'val'
        assert file['blocks'].dtype.kind == 'U'


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'stiffness_val.npz'
    save_record(path, **arrays())
    before = path.read_bytes()

    def disk_full(file, **kwargs):
        file.write(b'half')
        raise OSError('disk full')

    monkeypatch.setattr(np, 'savez_compressed', disk_full)
    with pytest.raises(OSError, match='disk full'):
        save_record(path, **arrays(n=2))
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
    (dict(extra=np.ones((4, 3))), 'expected adaptive.*got.*extra'),
    ({n: np.ones((0, 3)) for n in FIELDS}, 'is the data set empty'),
])
def test_bad_records_are_not_written(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        save_record(tmp_path / 'stiffness_val.npz', **{**arrays(), **change})
    assert not list(tmp_path.iterdir())


def test_damaged_files(tmp_path):
    path = tmp_path / 'stiffness_val.npz'
    with pytest.raises(FileNotFoundError, match='no stiffness record at'):
        load_record(path)
    save_record(path, **arrays())
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[60:90] = bytes(30)
    for damage in (b'', b'hello', whole[:len(whole) // 2], whole[:-30],
                   bytes(flipped)):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match='stiffness_val.npz is damaged'):
            load_record(path)


def test_other_npz_files(tmp_path):
    path = tmp_path / 'stiffness_val.npz'
    np.savez(path, adaptive=np.ones((2, 2)))
    with pytest.raises(ValueError, match='no stiffness record: it lacks unit'):
        load_record(path)
    given = arrays()
    for settings, message in (('{', 'settings are no JSON'),
                              ('[]', 'settings must be a dict'),
                              ('{}', 'settings lack model')):
        np.savez(path, **{**given, 'settings': np.array(settings)})
        with pytest.raises(ValueError, match=message):
            load_record(path)
    given['settings'] = np.array(json.dumps(SETTINGS))
    np.savez(path, **{**given, 'unit': np.full((4, 3), np.inf)})
    with pytest.raises(ValueError, match='unit holds NaN'):
        load_record(path)
    np.savez(path, **{**given, 'blocks': np.array([{}] * 3, object)})
    with pytest.raises(ValueError, match='damaged'):
        load_record(path)


def test_name(tmp_path):
    with pytest.raises(ValueError, match=r'named \*.npz'):
        save_record(tmp_path / 'stiffness_val.npy', **arrays())
