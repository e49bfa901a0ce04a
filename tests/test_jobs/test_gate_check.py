"""Attentions that a training cannot bring to what they are for."""

import re

import pytest
import torch

from tests.test_engine.stiffness_job import digits_runner, log_text

CALIBRATION = dict(type='mmstepnet.AttentionBNCalibrationHook', num_batches=3)
KEEPS_START = 'saw no data and stay in eval mode'
FROZEN = "stays at the paper's start for ever"
WARM = dict(type='StepNet', init_step=1.0)


def trained(work_dir, backbone, hooks=(), load_from=None):
    """What attentions have learned and collected in a training."""
    runner = digits_runner(
        work_dir,
        images=3,
        hook=dict(interval=None),
        options={
            **{f'model.backbone.{key}': v for key, v in backbone.items()},
            'custom_hooks': [*hooks, dict(type='mmstepnet.GateCheckHook')],
            'load_from': load_from,
        },
    )
    runner.train()
    return runner.model.state_dict()


@pytest.mark.parametrize(
    'backbone, hooks, is_said',
    [
        pytest.param(
            dict(norm_eval=True, attention=WARM), [], True, id='warm start'
        ),
        pytest.param(dict(norm_eval=True), [], True, id="the paper's start"),
        pytest.param(
            dict(norm_eval=True, attention=WARM),
            [CALIBRATION],
            False,
            id='calibrated',
        ),
        pytest.param(dict(attention=WARM), [], False, id='norms that learn'),
    ],
)
def test_bns_that_will_see_no_data_are_named(
    backbone, hooks, is_said, tmp_path
):
    """It is said where statistics stay what they were, and only there."""
    state = trained(tmp_path, backbone, hooks)
    means = [
        t
        for key, t in state.items()
        if key.endswith('bn.running_mean')
        if '.attention.' in key
    ]
    assert {not mean.any() for mean in means} == {is_said}
    log = log_text(tmp_path)
    assert (KEEPS_START in log) == is_said
    if is_said:
        (line,) = re.findall(f'WARNING - (.*{KEEPS_START}.*)', log)
        assert 'backbone.layer1.0, ' in line and '(7 blocks)' in line
        pasted = line.rpartition('the training: ')[2]
        assert eval(pasted.partition(' = ')[2]) == [
            dict(type=CALIBRATION['type'])
        ]


@pytest.mark.parametrize('is_trained', [False, True])
def test_frozen_gates_at_the_papers_start_are_named(is_trained, tmp_path):
    """But not those whose weights come from a training."""
    path = str(tmp_path / 'weights.pth')
    weights = digits_runner(tmp_path / 'before', images=3).model.state_dict()
    if not is_trained:
        plain = {k: t for k, t in weights.items() if '.attention.' not in k}
        weights = plain
    torch.save(weights, path)
    backbone = dict(frozen_stages=1)
    state = trained(tmp_path / 'job', backbone, load_from=path)
    at_start = [
        key
        for key, bias in state.items()
        if key.endswith('ie_bias') and (bias == -1).all()
    ]
    wanted = [] if is_trained else ['layer1.0', 'layer1.1', 'layer1.2']
    assert at_start == [
        f'backbone.{name}.step.attention.ie_bias' for name in wanted
    ]
    log = log_text(tmp_path / 'job')
    assert (FROZEN in log) == (not is_trained)
    assert KEEPS_START not in log
    # What the library says elsewhere stands in the log, too, and once.
    assert log.count('INFO - StepNet in 7 blocks: layer1.0, layer1.1,') == 1
    found = re.findall('WARNING - StepNet finds no weights of its own', log)
    assert len(found) == (not is_trained)
    if not is_trained:
        assert re.search(r'WARNING - .*layer1.0, .* \(3 blocks\)', log)
