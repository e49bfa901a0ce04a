"""Where the library's warnings go."""

import logging
import warnings

import pytest

from mmstepnet import messages
from mmstepnet.attentions import StepNet


def load_nothing():
    """What a plain checkpoint is to the paper's gate: a reason to warn."""
    StepNet(8).load_state_dict({}, strict=False)


def test_without_a_log_python_warns(monkeypatch):
    monkeypatch.setattr(messages.LOGGER, 'handlers', [])
    with pytest.warns(UserWarning, match='finds no weights of its own'):
        load_nothing()


def test_a_log_gets_it_instead(monkeypatch):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    monkeypatch.setattr(messages.LOGGER, 'handlers', [handler])
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        load_nothing()
    (record,) = records
    assert record.levelno == logging.WARNING
    assert 'finds no weights of its own' in record.getMessage()


@pytest.mark.parametrize(
    'count, wanted',
    [
        pytest.param(1, '0', id='one'),
        pytest.param(4, '0, 1, 2, 3', id='all'),
        pytest.param(9, '0, 1, 2, …, 8', id='first and last'),
    ],
)
def test_long_lists_are_shortened(count, wanted):
    assert messages.shorten([str(k) for k in range(count)]) == wanted


class Closed(messages.JobHandler):
    """Of a job that has ended."""

    def is_open(self):
        return False


class Open(messages.JobHandler):
    """Of a job that runs."""

    def __init__(self):
        super().__init__()
        self.written = []

    def is_open(self):
        return True

    def write(self, level, text):
        self.written.append((level, text))


def test_without_a_job_nothing_is_lost(monkeypatch, capsys):
    monkeypatch.setattr(messages.LOGGER, 'handlers', [Closed()])
    monkeypatch.setattr(logging.root, 'handlers', [])
    with pytest.warns(UserWarning, match='finds no weights of its own'):
        load_nothing()
    logging.getLogger('mmstepnet.steps').warning('Without steps: a')
    messages.inform('StepNet in 1 blocks')
    assert capsys.readouterr().err == 'Without steps: a\n'


def test_a_job_is_told(monkeypatch):
    handler = Open()
    monkeypatch.setattr(messages.LOGGER, 'handlers', [handler])
    logging.getLogger('mmstepnet.steps').warning('Without steps: a')
    messages.inform('StepNet in 1 blocks')
    assert handler.written == [
        (logging.WARNING, 'Without steps: a'),
        (logging.INFO, 'StepNet in 1 blocks'),
    ]
