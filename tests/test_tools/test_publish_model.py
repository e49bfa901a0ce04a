import hashlib
import json

import numpy as np
import pytest
import torch
from mmpretrain import get_model
from safetensors import safe_open

from mmstepnet.jobs.checkpoint import read_checkpoint
from tests.programs import call_tool, load_tool
from tests.utils import perturb

CONFIG = 'configs/digits/resnet20_stepnet_digits.py'


def test_publish(tmp_path):
    model = perturb(get_model(CONFIG)).eval()
    meta = dict(
        epoch=3,
        seed=1,
        experiment_name='mine',
        cfg='model = {}',
        dataset_meta=dict(
            classes=tuple('0123456789'), sigmas=np.ones(2, np.float32)
        ),
    )
    torch.save(
        dict(
            meta=meta,
            state_dict=model.state_dict(),
            optimizer=dict(state={0: torch.zeros(1000)}),
            message_hub={},
        ),
        tmp_path / 'epoch_3.pth',
    )
    call_tool(
        load_tool('publish_model.py'),
        tmp_path / 'epoch_3.pth',
        tmp_path / 'out' / 'net',
    )
    pickled, plain = sorted(
        (tmp_path / 'out').iterdir(), key=lambda path: path.suffix
    )
    for file, ending in ((pickled, '.pth'), (plain, '.safetensors')):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert file.name == f'net-{digest[:8]}{ending}'
    content = read_checkpoint(str(pickled))
    assert content.keys() == {'meta', 'state_dict'}
    assert content['meta'].keys() == {'cfg', 'dataset_meta', 'epoch'}
    with safe_open(plain, 'pt') as file:
        assert json.loads(file.metadata()['epoch']) == 3
        assert json.loads(file.metadata()['dataset_meta']) == dict(
            classes=list('0123456789'), sigmas=[1, 1]
        )
        for name, value in model.state_dict().items():
            assert torch.equal(file.get_tensor(name), value)
    # The host takes it.
    loaded = get_model(CONFIG, pretrained=str(pickled)).eval()
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize(
    'weights, message',
    [
        pytest.param({}, 'holds no weights', id='no weights'),
        pytest.param(
            dict(fc=torch.tensor([1, float('inf')])),
            'not finite: fc',
            id='not finite',
        ),
    ],
)
def test_what_is_not_published(tmp_path, weights, message):
    torch.save(dict(state_dict=weights), tmp_path / 'x.pth')
    with pytest.raises(SystemExit, match=message):
        call_tool(
            load_tool('publish_model.py'), tmp_path / 'x.pth', tmp_path / 'net'
        )
    assert [path.name for path in tmp_path.iterdir()] == ['x.pth']
