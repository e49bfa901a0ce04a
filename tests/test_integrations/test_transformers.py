"""transformers' Trainer with steps, killed and resumed."""

import ast

import pytest
import torch
from torch.utils.data import DataLoader

from mmstepnet import insert_steps, measure_stiffness
from tests.utils import perturb, seeded

hf = pytest.importorskip('transformers', reason='needs transformers')
pytest.importorskip('accelerate', reason='needs accelerate')

from mmstepnet.integrations.trainers import save_beside, stiffness_of  # noqa: E402
from mmstepnet.integrations.transformers import StepsCallback, load_folder  # noqa: E402

IMAGES = seeded(12, 3, 32, 32)
ROWS = [
    dict(pixel_values=image, labels=k % 3) for k, image in enumerate(IMAGES)
]


def build():
    torch.manual_seed(0)
    model = perturb(
        hf.ResNetForImageClassification(
            hf.ResNetConfig(
                embedding_size=8,
                hidden_sizes=[8, 16],
                depths=[3, 2],
                layer_type='basic',
                num_labels=3,
            )
        )
    )
    insert_steps(model)
    return model


class Trainer(hf.Trainer):
    """Evaluates two data sets; its loader may have a generator of its own."""

    order = None

    def __init__(self, out, *callbacks):
        super().__init__(
            build(),
            hf.TrainingArguments(
                str(out),
                num_train_epochs=2,
                per_device_train_batch_size=4,
                per_device_eval_batch_size=4,
                eval_strategy='epoch',
                save_strategy='epoch',
                seed=3,
                report_to='none',
                disable_tqdm=True,
                use_cpu=True,
                lr_scheduler_type='constant',
            ),
            train_dataset=ROWS,
            eval_dataset=dict(all=ROWS, some=ROWS[:4]),
            callbacks=list(callbacks),
        )

    def get_train_dataloader(self):
        return (
            super().get_train_dataloader()
            if self.order is None
            else (
                DataLoader(
                    ROWS,
                    4,
                    shuffle=True,
                    generator=self.order,
                    collate_fn=self.data_collator,
                )
            )
        )


class Kill(hf.TrainerCallback):
    def on_epoch_begin(self, args, state, control, **kwargs):
        if state.epoch == 1:
            raise KeyError('killed')


def test_killed_and_resumed_is_bit_for_bit(tmp_path):
    """And what is logged and saved is what the model is."""
    whole = Trainer(tmp_path / 'whole', StepsCallback(measured_batches=0))
    whole.train()
    with pytest.raises(KeyError, match='killed'):
        Trainer(tmp_path / 'parts', StepsCallback(), Kill()).train()
    parts = Trainer(tmp_path / 'parts', StepsCallback())
    parts.train(resume_from_checkpoint=True)
    model = parts.model
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key
        if 'step.attention.bn.num_batches_tracked' in key:
            assert value == 3 + 6  # a calibration, and a training
    found = parts.evaluate()
    for name, images in (('all', IMAGES), ('some', IMAGES[:4])):
        measured = measure_stiffness(model, [dict(pixel_values=images)])
        assert found[f'eval_{name}_tns'] == pytest.approx(
            measured.tns(), rel=1e-5
        )
        assert found[f'eval_{name}_nsi'] == pytest.approx(
            float(measured.nsi().mean()), rel=1e-5
        )
    logged = [row for row in parts.state.log_history if 'eval_all_tns' in row]
    assert [row['step'] for row in logged] == [3, 6, 6]
    parts.save_model(str(tmp_path / 'last'))
    for folder in ('parts/checkpoint-6', 'last'):
        again = type(model).from_pretrained(tmp_path / folder).eval()
        assert len(load_folder(again, tmp_path / folder)) == 4
        assert torch.equal(again(IMAGES)[0], model.eval()(IMAGES)[0])


def test_an_evaluation_prints_the_stiffness(tmp_path, capsys):
    """In its own line, which is one row of the history and the metrics.

    Whether or not the trainer logs a copy, and not at a training's end.
    """

    class Copying(Trainer):
        def log(self, logs, *args):
            super().log({**logs, 'mine': 1.0}, *args)

    for kind in (Trainer, Copying):
        trainer = kind(tmp_path, StepsCallback(save=False))
        trainer.train()
        trainer.predict(ROWS[:4])
        trainer.log(dict(loss=1.0))
        metrics = trainer.evaluate()
        printed = [
            ast.literal_eval(line)
            for line in capsys.readouterr().out.splitlines()
            if line.startswith('{')
        ]
        for rows in (printed, trainer.state.log_history):
            for row in rows:
                names = {
                    key.removesuffix('_runtime')
                    for key in row
                    if key.startswith('eval_') and key.endswith('_runtime')
                }
                assert {k for k in row if k.endswith(('_tns', '_nsi'))} == {
                    f'{name}_{what}'
                    for name in names
                    for what in ('tns', 'nsi')
                }
            assert sum('eval_some_nsi' in row for row in rows) == 2 + 1
        last = printed[-1]['eval_some_tns']
        assert float(last) == pytest.approx(metrics['eval_some_tns'], rel=1e-3)


@pytest.mark.parametrize('place', [0, 1], ids=['before', 'behind'])
def test_early_stopping_on_the_stiffness(tmp_path, caplog, place):
    """It may stand before what measures it."""
    callbacks = [StepsCallback(save=False)]
    callbacks.insert(place, hf.EarlyStoppingCallback(1))
    trainer = Trainer(tmp_path, *callbacks)
    trainer.eval_dataset = ROWS
    trainer.args.load_best_model_at_end = True
    trainer.args.metric_for_best_model = 'eval_nsi'
    trainer.train()
    found = [
        row['eval_nsi']
        for row in trainer.state.log_history
        if 'eval_nsi' in row
    ]
    assert trainer.state.best_metric == min(found)
    assert 'did not find' not in caplog.text


def test_the_order_of_batches_stays(tmp_path):
    states = []
    for callbacks in ([], [StepsCallback(save=False)]):
        trainer = Trainer(tmp_path, *callbacks)
        trainer.order = torch.Generator().manual_seed(7)
        trainer.train()
        states.append(trainer.order.get_state())
    assert torch.equal(*states) and not [*tmp_path.rglob('steps.*')]


def test_steps_of_a_model_that_does_not_save_itself(tmp_path):
    StepsCallback().on_save(
        hf.TrainingArguments(str(tmp_path)),
        hf.TrainerState(global_step=2),
        None,
        model=torch.nn.Sequential(build()),
    )
    assert (tmp_path / 'checkpoint-2' / 'steps.safetensors').is_file()


def test_steps_are_those_of_the_weights_that_are_saved(tmp_path, caplog):
    """Averaged ones, by keyword, by place, or from a trainer."""
    trainer = Trainer(tmp_path)
    model = trainer.model
    StepsCallback(calibration_batches=0).on_train_begin(
        trainer.args, trainer.state, None, model=model, train_dataloader=None
    )
    averaged = {
        key: value / 2 if value.is_floating_point() else value
        for key, value in model.state_dict().items()
    }
    model.save_pretrained(tmp_path / 'named', state_dict={**averaged})
    model.save_pretrained(tmp_path / 'placed', True, {**averaged})
    trainer._save(str(tmp_path / 'trainer'), state_dict={**averaged})
    for folder in 'named', 'placed', 'trainer':
        again = type(model).from_pretrained(tmp_path / folder)
        load_folder(again, tmp_path / folder)
        for key, value in averaged.items():
            assert torch.equal(again.state_dict()[key], value), key
    model.save_pretrained(tmp_path / 'other', is_main_process=False)
    without = {
        key: value for key, value in averaged.items() if '.step.' not in key
    }
    model.save_pretrained(tmp_path / 'without', state_dict=without)
    assert 'the weights lack resnet.' in caplog.text
    for folder in 'other', 'without':
        assert not (tmp_path / folder / 'steps.safetensors').exists()


def test_a_tns_that_is_0_by_definition_is_not_logged():
    """NSI is, where each stage has one block beside its first."""
    model = hf.ResNetForImageClassification(
        hf.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[2, 2],
            layer_type='basic',
        )
    )
    batches = [dict(pixel_values=IMAGES)]
    found = stiffness_of(model, batches, None, torch.device('cpu'))
    measured = measure_stiffness(model, batches)
    assert measured.tns() == 0
    assert found == dict(
        nsi=pytest.approx(float(measured.nsi().mean()), rel=1e-5)
    )


def test_a_model_without_steps_is_saved_without_a_word(tmp_path, caplog):
    """As one with metrics alone."""
    save_beside(torch.nn.Linear(2, 2), tmp_path)
    assert not [*tmp_path.iterdir()] and not caplog.text


def test_a_folder_of_folders_names_those_that_hold_steps(tmp_path, caplog):
    """As what a Trainer writes, in which checkpoints are folders."""
    model = build()
    model.save_pretrained(tmp_path / 'checkpoint-3')
    save_beside(model, tmp_path / 'checkpoint-3')
    (tmp_path / 'runs').mkdir()
    assert load_folder(model, tmp_path) == []
    assert 'there are some in checkpoint-3' in caplog.text


def test_a_device_without_doubles_ends_no_training(caplog):
    """What it cannot hold stays on the CPU, where one process needs no more.

    PyTorch for another machine has no MPS at all, and says so likewise.
    """
    assert (
        stiffness_of(
            torch.nn.Linear(2, 2),
            [torch.rand(1, 2)],
            None,
            torch.device('mps'),
        )
        == {}
    )
    assert 'the stiffness was not measured' in caplog.text
