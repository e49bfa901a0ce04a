"""Configs in which nothing is missing that the host reads."""

import pytest

pytest.importorskip('mmengine', reason='needs OpenMMLab')

from mmengine.config import Config

from mmstepnet.jobs.config_check import check_data


@pytest.fixture
def dataset(tmp_path):
    """Of MMDetection, whose files are there."""
    (tmp_path / 'pictures').mkdir()
    (tmp_path / 'boxes.json').write_text('{}')
    return dict(
        type='CocoDataset',
        data_root=str(tmp_path),
        ann_file='boxes.json',
        data_prefix=dict(img='pictures/'),
        pipeline=[dict(type='LoadImageFromFile')],
    )


def check(dataset, **others):
    cfg = dict(train_dataloader=dict(dataset=dataset), default_scope='mmdet')
    check_data(Config({**cfg, **others}), 'train')


@pytest.mark.parametrize(
    'change, others',
    [
        pytest.param({}, {}, id='all is there'),
        pytest.param(
            dict(data_prefix=dict(img='pictures/', seg='no')),
            {},
            id='a prefix that no step of the pipeline reads',
        ),
        pytest.param(dict(data_prefix=['a', 'b']), {}, id='a list'),
        pytest.param(
            dict(data_root='no'), dict(default_scope='mmpose'), id='MMPose'
        ),
        pytest.param(
            dict(data_root='no', backend_args=dict(backend='petrel')),
            {},
            id='of a store',
        ),
        pytest.param(
            dict(
                data_root='no',
                pipeline=[dict(type='A', backend_args=dict(backend='lmdb'))],
            ),
            {},
            id='of a store, by the pipeline',
        ),
        pytest.param(
            dict(data_root='no'), dict(custom_imports=['mine']), id='own code'
        ),
    ],
)
def test_what_could_be_read_is_not_refused(dataset, change, others):
    check({**dataset, **change}, **others)


def test_a_root_that_no_path_uses(dataset, tmp_path):
    dataset['ann_file'] = str(tmp_path / 'boxes.json')
    dataset['data_prefix'] = dict(img=str(tmp_path / 'pictures'))
    check({**dataset, 'data_root': 'no'})


@pytest.mark.parametrize(
    'change',
    [
        pytest.param(dict(data_root='no'), id='root'),
        pytest.param(dict(ann_file='no.json'), id='annotations'),
        pytest.param(dict(data_prefix=dict(img='no')), id='pictures'),
    ],
)
def test_what_is_missing_is_refused(dataset, change):
    with pytest.raises(SystemExit, match='no.* is not there, which train_'):
        check({**dataset, **change})
