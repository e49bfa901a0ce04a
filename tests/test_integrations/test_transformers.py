"""transformers' Trainer with steps, killed and resumed."""

import numpy as np
import pytest
import torch

from mmstepnet import insert_steps, measure_stiffness
from tests.utils import perturb

hf = pytest.importorskip('transformers', reason='needs transformers')
pytest.importorskip('accelerate', reason='needs accelerate')

from mmstepnet.integrations.transformers import (  # noqa: E402
    StepsCallback,
    load_folder,
)


def build(steps=True):
    torch.manual_seed(0)
    model = perturb(hf.ResNetForImageClassification(hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[3, 2],
        layer_type='basic', num_labels=3)))
    if steps:
        insert_steps(model)
    return model


def rows():
    images = torch.rand(12, 3, 32, 32,
                        generator=torch.Generator().manual_seed(1))
    return [dict(pixel_values=image, labels=k % 3)
            for k, image in enumerate(images)]


def trainer_of(model, out, *callbacks, epochs=2):
    return hf.Trainer(
        model, hf.TrainingArguments(
            str(out), num_train_epochs=epochs, per_device_train_batch_size=4,
            per_device_eval_batch_size=4, eval_strategy='epoch',
            save_strategy='epoch', report_to='none', disable_tqdm=True,
            use_cpu=True, seed=3, lr_scheduler_type='constant'),
        train_dataset=rows(), eval_dataset=rows(), callbacks=list(callbacks))


def test_killed_and_resumed_is_bit_for_bit(tmp_path):
    """And what is logged and saved is what the model is."""

    class KilledError(Exception):
        pass

    class Kill(hf.TrainerCallback):

        def on_epoch_begin(self, args, state, control, **kwargs):
            if state.epoch == 1:
                raise KilledError

    whole = trainer_of(build(), tmp_path / 'whole',
                       StepsCallback(measured_batches=0))
    whole.train()
    with pytest.raises(KilledError):
        trainer_of(
            build(), tmp_path / 'parts', StepsCallback(), Kill()).train()
    parts = trainer_of(build(), tmp_path / 'parts', StepsCallback())
    parts.train(resume_from_checkpoint=True)
    model = parts.model
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key

    found = parts.evaluate()
    images = torch.stack([row['pixel_values'] for row in rows()])
    measured = measure_stiffness(model, [dict(pixel_values=images)])
    assert found['eval_tns'] == pytest.approx(measured.tns(), rel=1e-5)
    assert found['eval_nsi'] == pytest.approx(
        float(np.mean(measured.nsi())), rel=1e-5)
    logged = [row for row in parts.state.log_history if 'eval_tns' in row]
    assert [row['step'] for row in logged] == [3, 6, 6]
    parts.save_model(str(tmp_path / 'last'))
    for folder in ('parts/checkpoint-6', 'last'):
        again = type(model).from_pretrained(tmp_path / folder).eval()
        assert len(load_folder(again, tmp_path / folder)) == 4
        assert torch.equal(again(images)[0], model.eval()(images)[0])


def test_each_evaluation_has_its_prefix(tmp_path):
    """And the order of a loader with a generator of its own stays."""
    images = rows()
    order = torch.Generator().manual_seed(7)

    class Trainer(hf.Trainer):

        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(
                images, 4, shuffle=True, generator=order,
                collate_fn=self.data_collator)

    seen = {}
    for callbacks in ([], [StepsCallback(save=False)]):
        order.manual_seed(7)
        model = build()
        trainer = Trainer(
            model, hf.TrainingArguments(
                str(tmp_path), num_train_epochs=1, report_to='none',
                per_device_eval_batch_size=4, eval_strategy='epoch',
                disable_tqdm=True, use_cpu=True, save_strategy='no'),
            eval_dataset=dict(all=images, first=images[:4]),
            callbacks=callbacks)
        trainer.train()
        seen[len(callbacks)] = order.get_state()
    assert torch.equal(seen[0], seen[1])
    for name, some in (('all', images), ('first', images[:4])):
        logged = {k: v for row in trainer.state.log_history
                  for k, v in row.items()}[f'eval_{name}_tns']
        measured = measure_stiffness(model, [dict(pixel_values=torch.stack(
            [row['pixel_values'] for row in some]))])
        assert logged == pytest.approx(measured.tns(), rel=1e-5)
