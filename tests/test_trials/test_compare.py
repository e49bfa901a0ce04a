"""Rungs in a tiny network, against what the library does by hand."""

import copy
import errno
import json
import os
from functools import partial
from unittest import mock

import pytest
import torch

import mmstepnet
from mmstepnet.trials import compare, plan, trial
from mmstepnet.trials.comparison import Comparison
from mmstepnet.trials.pictures import FOLDS, deal, decode
from mmstepnet.trials.plan import RATES, fit_epochs, plan_trainings
from mmstepnet.trials.rows import PLAN, Rows
from mmstepnet.trials.trial import Recipe, Trial
from tests.test_trials.tiny_network import (
    TinyNet,
    blockless,
    half,
    headless,
    net,
    pictures,
    two_headed,
    without_numbers,
)

RUNGS = 'head', 'norms', 'layer-scale', 'stepnet', 'se'


@pytest.fixture(autouse=True)
def one_epoch(monkeypatch):
    """Times say nothing then, as long as there is one."""
    monkeypatch.setattr(plan, 'MOST_EPOCHS', 1)
    monkeypatch.setattr(plan, 'FEW_EPOCHS', 0)


def call(folder, data=None, rungs=('head', 'layer-scale'), **options):
    settings = dict(out=folder, force=True, minutes=60.0, batch_size=8)
    return mmstepnet.compare_rungs(
        net()[0], data or pictures(), rungs, **(settings | options)
    )


def trial_of(data, batch_size=8):
    return Trial(net()[0], *decode(data), batch_size)


@pytest.mark.parametrize(
    'count, tested',
    [
        pytest.param(33, 33, id='folds'),
        pytest.param(33, 20, id='pictures of their own to test on'),
    ],
)
def test_each_picture_is_tested_once(count, tested):
    """By a fold that was not trained on it."""
    apart = tested != count
    labels = torch.arange(count + apart * tested) % 3
    trainings = plan_trainings(labels, count)
    tries, folds = trainings[: len(RATES)], trainings[len(RATES) :]
    seen = torch.cat([fold.tested for fold in folds])
    wanted = torch.arange(len(labels))[count if apart else 0 :]
    assert seen.sort().values.equal(wanted)
    for fold in folds:
        assert not {*fold.trained.tolist()} & {*fold.tested.tolist()}
        others = {*range(count)} - {*fold.tested.tolist()}
        assert {*fold.trained.tolist()} == others
    assert [t.rate for t in tries] == [*RATES]
    first = {*folds[0].trained.tolist()}
    for t in tries:
        assert {*t.trained.tolist()} | {*t.tested.tolist()} == first
        assert len(t.tested) == pytest.approx(len(first) / FOLDS, abs=1)


def test_folds_are_stratified():
    labels = torch.tensor([2] * 11 + [0] * 7 + [1] * 5)
    folds = deal(labels)
    for mine in (folds, *(folds[labels == k] for k in range(3))):
        sizes = mine.bincount(minlength=FOLDS)
        assert sizes.max() - sizes.min() <= 1


def learned_by_hand(rung):
    """How many numbers a rung has beside the head, in two blocks of 8."""
    of_channel = {'head': 0, 'norms': 2, 'layer-scale': 1, 'stepnet': 6}
    if rung == 'se':  # one hidden unit: both matrices and both biases
        return 2 * (8 + 1 + 8 + 8)
    return 2 * 8 * of_channel[rung]


@pytest.mark.parametrize('rung', RUNGS)
def test_only_a_rung_and_the_head_are_trained(rung):
    data = pictures()
    trial = trial_of(data)
    base = copy.deepcopy(trial.model.state_dict())
    places = torch.arange(len(data))
    model, head, parameters = trial.build(rung, places, seed=1)
    assert head.weight.shape == (3, 8)  # (5, 8) before
    trained = sum(p.numel() for p in parameters)
    assert trained == learned_by_hand(rung)
    assert trial.measure(rung)['trained'] == trained + 8 * 3 + 3
    started = copy.deepcopy(model.state_dict())
    # At its start a rung computes what the head alone does.
    alone, _, _ = trial.build('head', places, seed=1)
    x = torch.stack([image for image, _ in data])
    model.eval()
    torch.testing.assert_close(model(x), alone.eval()(x))
    model = trial.train(rung, places, Recipe(0.01, 2, 1))
    moved = set()
    for name, t in model.state_dict().items():
        if not t.equal(started[name]):
            moved.add(name)
    wanted = {'fc.weight', 'fc.bias'}
    if rung == 'norms':
        for k in range(2):
            wanted |= {f'layer1.{k}.bn2.{p}' for p in ('weight', 'bias')}
    frozen = {n for n in moved if '.attention.' not in n}
    assert frozen == wanted
    assert (moved != wanted) == (rung in RUNGS[2:])
    for name, t in trial.model.state_dict().items():
        assert t.equal(base[name])


def test_a_head_that_fits_is_kept():
    """One of as many other classes is worse than no knowledge."""
    data = pictures()
    trial = trial_of(data)
    places = torch.arange(len(data))
    model = trial.train('head', places, Recipe(0.01, 10, 0))
    for sign in (1, -1):  # with -1 it takes each picture for another class
        with torch.no_grad():
            model.fc.weight *= sign
            model.fc.bias *= sign
        head = Trial(model, trial.images, trial.labels, 8).model.fc
        assert head.weight.equal(model.fc.weight) is (sign > 0)
        assert bool(head.weight.any()) is (sign > 0)


def test_rungs_of_a_user(tmp_path):
    """An attention by its name, and a function, in the same trial."""

    def stem(model):
        return model.stem.parameters()

    result = call(tmp_path, rungs=['head', 'ECA', stem])
    assert [rung['rung'] for rung in result.rungs] == ['head', 'ECA', 'stem']
    assert result.rungs[2]['trained'] == 27 + 8 * 27 + 8
    assert result.sentence == 'On these 30 pictures nothing was asked.'


def test_times_are_taken_in_turns():
    """What else runs on the machine falls on all of them."""
    order = []
    calls = [partial(order.append, name) for name in 'ab']
    seconds = trial._seconds(calls, 2)
    assert order == ['a', 'b', 'a', 'b']
    assert len(seconds) == 2 and all(0 <= s < 1 for s in seconds)


def test_two_rungs_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match='two rungs have one name'):
        call(tmp_path, rungs=['head', 'head'])


def test_goes_on_after_a_kill(tmp_path, monkeypatch):
    """Wherever it was killed, half a line included, it ends as if not."""
    whole = call(tmp_path / 'whole')
    rows = Rows(tmp_path / 'whole' / 'rows.jsonl')
    monkeypatch.setattr(
        Trial, 'measure', lambda *_: rows[PLAN]['costs']['head']
    )
    train = Trial.train
    calls = []

    def dies(self, *args):
        calls.append(args)
        if len(calls) % 6 == 5:
            raise KeyboardInterrupt
        return train(self, *args)

    monkeypatch.setattr(Trial, 'train', dies)
    path = tmp_path / 'killed' / 'rows.jsonl'
    kills = 0
    while True:
        try:
            result = call(tmp_path / 'killed')
            break
        except KeyboardInterrupt:
            kills += 1
            text = path.read_text()
            path.write_text(text + '\n{"run": "head, fold 4", "ra')
    trainings = 2 * (len(RATES) + FOLDS)
    assert kills > 1 and len(calls) == trainings + kills
    assert result.rungs[1]['folds'] == whole.rungs[1]['folds']
    assert result.differences == whole.differences
    again = Rows(path)
    for run in rows:
        if run != PLAN:
            assert again[run] == rows[run]


def test_goes_on_with_a_new_head(tmp_path):
    """As of a script that builds one in each call; the trial has its own."""
    found = []
    for seed in range(2):
        model = net()[0]
        torch.manual_seed(seed)
        model.fc.reset_parameters()
        found.append(
            mmstepnet.compare_rungs(
                model,
                pictures(),
                ['head'],
                out=tmp_path,
                force=True,
                minutes=60.0,
            ).rungs
        )
    assert found[0] == found[1]


def test_the_features_of_a_view_hold_nothing_else():
    """As the class token, which is all that a ViT's head is given."""

    class Cut(TinyNet):
        def forward(self, x):
            return self.fc(self.layer1(self.stem(x)).mean(2)[:, :, 0])

    seen, cat = [], torch.cat
    with mock.patch.object(
        torch,
        'cat',
        lambda parts, *dim: seen.append(parts) or cat(parts, *dim),
    ):
        Trial(Cut(), *decode(pictures()), 8)
    (features,) = [parts for parts in seen if parts[0].shape[1:] == (8,)]
    for part in features:
        assert part.untyped_storage().nbytes() == 4 * part.numel()


def test_no_picture_is_trained_alone():
    """Of one a BN has no variance."""
    data = pictures(31)
    sizes = []
    trial = trial_of(data, batch_size=2)
    handle = trial.model.register_forward_pre_hook(
        lambda model, inputs: sizes.append(len(inputs[0]))
    )
    trial.train('stepnet', torch.arange(31), Recipe())
    handle.remove()
    assert sum(sizes[-15:]) == 31 and {*sizes[-15:]} == {2, 3}


def test_the_lowest_cross_entropy_chooses_the_rate(tmp_path):
    rows = Rows(tmp_path / 'rows.jsonl')
    for rate, loss in zip(RATES, (0.7, 0.6, 1e9)):
        rows.append(f'head, rate {rate:g}', loss=loss)
    assert compare.choose_rate(rows, 'head') == RATES[1]


def test_another_trial_is_refused(tmp_path):
    call(tmp_path)
    with pytest.raises(ValueError, match='its minutes is 60.0, and now it is'):
        call(tmp_path, minutes=50.0)
    with pytest.raises(ValueError, match='its pictures is'):
        call(tmp_path, pictures(seed=1))


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """Of the third row it takes a part."""
    calls = []

    def full(file):
        calls.append(file)
        if len(calls) == 3:
            os.ftruncate(file, os.fstat(file).st_size - 9)
            raise OSError(errno.ENOSPC, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr('os.fsync', full)
        with pytest.raises(OSError, match='No space left'):
            call(tmp_path)
    whole = Rows(tmp_path / 'rows.jsonl')
    assert len(whole) == 2
    result = call(tmp_path)
    after = Rows(tmp_path / 'rows.jsonl')
    assert len(after) == 1 + 2 * (len(RATES) + FOLDS)
    assert all(after[run] == row for run, row in whole.items())
    assert [rung['rung'] for rung in result.rungs] == ['head', 'layer-scale']


@pytest.mark.parametrize(
    'make, data, error',
    [
        pytest.param(net, pictures(classes=1), 'of one class', id='a class'),
        pytest.param(
            net,
            [*pictures(), (torch.rand(3, 16, 16), 3)],
            'the class of 30 has 1 pictures to train on and needs 5',
            id='few pictures',
        ),
        pytest.param(
            net,
            [*pictures(), (pictures()[4][0], 0)],
            '4 and 30 are one picture in two classes',
            id='a picture in two classes',
        ),
        pytest.param(
            net,
            [*pictures(), (torch.full((3, 16, 16), 1e5), 0)],
            '30 has values that are no numbers in float16',
            id='values beyond float16',
        ),
        pytest.param(headless, pictures(), 'has no head', id='no head'),
        pytest.param(two_headed, pictures(), 'has no head', id='two heads'),
        pytest.param(
            half,
            pictures(),
            'layer1.0.conv1.weight is in torch.float16',
            id='half precision',
        ),
        pytest.param(
            without_numbers,
            pictures(),
            'for 30 of 30 pictures the network gives scores that are no',
            id='NaN',
        ),
        pytest.param(
            blockless, pictures(), 'no block can take steps', id='no blocks'
        ),
    ],
)
def test_bad_input(make, data, error, tmp_path):
    with pytest.raises(ValueError, match=error):
        mmstepnet.compare_rungs(make()[0], data, out=tmp_path, force=True)
    assert not [*tmp_path.iterdir()]


def test_few_pictures_are_refused(tmp_path):
    error = 'these 30 pictures show only differences above 16 points'
    with pytest.raises(ValueError, match=error):
        call(tmp_path, force=False)


@pytest.mark.parametrize(
    'seconds, epochs, taken',
    [
        pytest.param(1e9, 10, [*RUNGS], id='more than enough'),
        # 100 pictures of training and 10 of tests; five rungs at 2 and 1
        # seconds a picture are 1,000 an epoch and 50.
        pytest.param(3050, 3, [*RUNGS], id='three epochs'),
        pytest.param(
            2000,
            2,
            ['head', 'norms', 'layer-scale', 'stepnet'],
            id='the last rung is left out',
        ),
        pytest.param(
            700, 1, ['head', 'layer-scale', 'stepnet'], id='an epoch'
        ),
    ],
)
def test_epochs_fit_into_the_time(seconds, epochs, taken, monkeypatch):
    monkeypatch.undo()
    training = plan.Training('', torch.arange(100), torch.arange(10))
    cost = dict(building=0.0, training=2.0, inference=1.0)
    costs = {name: cost for name in RUNGS}
    found = fit_epochs(costs, [training], seconds)
    assert (found['epochs'], found['taken']) == (epochs, taken)
    assert found['seconds'] <= seconds
    with pytest.raises(ValueError, match='takes about 10.5 minutes'):
        fit_epochs(costs, [training], 600)
    dear = {name: cost | dict(building=100.0) for name in RUNGS}
    assert fit_epochs(dear, [training], 3050)['epochs'] == 2
    costs = {name: costs[name] for name in ('norms', 'se')}
    with pytest.raises(ValueError, match='of norms, se takes about'):
        fit_epochs(costs, [training], 60)


@pytest.mark.parametrize('rung', ['head', 'norms', 'stepnet'])
def test_what_is_kept(rung, tmp_path, capsys):
    """The printed lines put it into the user's network."""
    call(tmp_path, rungs=['head', rung][rung == 'head' :], keep=rung)
    lines = capsys.readouterr().err.partition('import mmstepnet')
    code = ''.join(lines[1:])
    names = dict(model=net()[0].eval())
    exec(code, names)
    data = pictures()
    rows = Rows(tmp_path / 'rows.jsonl')
    rate = compare.choose_rate(rows, rung)
    wanted = trial_of(data).train(rung, torch.arange(30), Recipe(rate, 1, 0))
    x = torch.stack([image for image, _ in data])
    torch.testing.assert_close(names['model'].eval()(x), wanted(x))


def rows_of(tmp_path, right, tested=1000, margin=2.8):
    """Rows of rungs that are right on the first ones of each fold."""
    rows = Rows(tmp_path / 'rows.jsonl')
    costs = dict(training=1.0, inference=1.0, trained=7)
    rows.append(
        PLAN,
        taken=[*right],
        costs=dict.fromkeys(right, costs),
        tested=tested,
        margin=margin,
        shown=2.8,
    )
    size = tested // FOLDS
    for name, counts in right.items():
        for k in range(FOLDS):
            answers = '1' * counts[k] + '0' * (size - counts[k])
            rows.append(f'{name}, fold {k}', rate=0.1, right=answers)
    return rows


SENTENCES = {
    'ahead, and worth less': (
        dict(
            head=[100] * 5,
            **{'layer-scale': [120] * 5},
            stepnet=[121, 119, 120, 120, 120],
        ),
        2.8,
        'On these 1,000 pictures a constant a channel is 10.0 points (8.1 to '
        '11.9) ahead of the head alone; StepNet is 0.0 points (−0.4 to 0.4) '
        'ahead of the constant: worth less than 2.8 points, which is what '
        '1,000 pictures can show.',
    ),
    'behind, by a margin of the user': (
        dict(head=[120] * 5, **{'layer-scale': [100] * 5}),
        1.0,
        'On these 1,000 pictures a constant a channel is 10.0 points (8.1 to '
        '11.9) behind the head alone.',
    ),
}


@pytest.mark.parametrize('case', SENTENCES)
def test_sentence(case, tmp_path):
    """Interval of 100 in 1,000: 1.96 sqrt(0.1 0.9 / 999) = 1.86 points."""
    right, margin, sentence = SENTENCES[case]
    result = Comparison(rows_of(tmp_path, right, margin=margin))
    assert result.sentence == sentence
    assert str(result).endswith(sentence)
    json.dumps(vars(result))


def test_undecided_says_how_many_pictures_would_decide(tmp_path):
    right = {'head': [100] * 5, 'layer-scale': [110, 90, 112, 104, 100]}
    result = Comparison(rows_of(tmp_path, right))
    (difference,) = result.differences
    assert difference['verdict'].startswith('undecided; about ')
    assert f': {difference["verdict"]}.' in result.sentence


def test_the_network_is_left_as_it_is(tmp_path):
    model = TinyNet().train()
    before = copy.deepcopy(model.state_dict())
    mmstepnet.compare_rungs(
        model, pictures(), ['stepnet'], out=tmp_path, force=True, minutes=60
    )
    assert model.training and before.keys() == model.state_dict().keys()
    for name, t in model.state_dict().items():
        assert t.equal(before[name])


def test_a_function_is_not_kept(tmp_path):
    def mine(model):
        return model.parameters()

    with pytest.raises(ValueError, match="keep='mine' is a function"):
        call(tmp_path, rungs=['head', mine], keep='mine')


def test_it_is_said_first_that_nothing_is_asked(tmp_path, capsys):
    with pytest.raises(ValueError, match='an epoch|one epoch'):
        call(tmp_path, rungs=['head', 'se'], minutes=1e-9)
    assert 'No question is asked' in capsys.readouterr().err


def test_a_picture_to_train_and_to_test_on(tmp_path):
    with pytest.raises(ValueError, match='4, to train on, and 30, to test on'):
        call(tmp_path, val=pictures()[4:])
