"""Exchanging ``type`` in the configs of the hosts' zoos."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import zoo
from benchmarks.zoo import compare, exchanged, found_in, worst

HOSTS = ('mmdet', 'mmpretrain')


@pytest.mark.parametrize('config', [
    'mmdet/yolact/yolact_r50_1xb8-55e_coco.py',
    'mmdet/dcn/faster-rcnn_r50-dconv-c3-c5_fpn_1x_coco.py',
    'mmdet/gcnet/mask-rcnn_r50-gcb-r4-c3-c5_fpn_1x_coco.py',
    'mmdet/detr/detr_r18_8xb2-500e_coco.py',
    'mmpretrain/resnet/resnet18_8xb16_cifar10.py',
    'mmpretrain/seresnet/seresnet50_8xb32_in1k.py',
])
def test_some_configs(config):
    host, _, name = config.partition('/')
    package = pytest.importorskip(host)
    setting, = found_in(
        Path(package.__file__).parent / '.mim' / 'configs' / name)
    assert compare(json.loads(setting)) == ''


@pytest.mark.parametrize('wrong, message', [
    (dict(frozen_stages=1), 'frozen_stages is 1, not -1; other .*modules'),
    (dict(out_indices=(0, 1)), r'out_indices is \(0, 1\), not .*in eval'),
    (dict(avg_down=True), 'other keys: .*layer2.0.downsample.2.weight')])
def test_the_comparison_sees_what_differs(wrong, message, monkeypatch):
    pytest.importorskip('mmdet')
    monkeypatch.setattr(zoo, 'exchanged',
                        lambda *args: {**exchanged(*args), **wrong})
    found = compare(dict(
        type='ResNet', depth=18, base_channels=8, _scope_='mmdet'))
    assert re.match(message, found, re.DOTALL), found


@pytest.mark.slow
@pytest.mark.parametrize('host', HOSTS)
def test_whole_zoo(host):
    """None differs in silence, and hosts' own failures are few."""
    pytest.importorskip(host)
    verdicts = {s: zoo.config_row(host, s) for s in zoo.settings_of(host)}
    found = [worst([verdicts[s] for s in settings])[0]
             for settings in zoo.config_settings(host).values()]
    assert len(found) > 50
    assert 'different' not in found
    assert found.count('equal') >= 0.85 * len(found)
