"""Lightning's trainer with steps, killed and resumed, and what it logs."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from mmstepnet import (
    calibrate,
    insert_steps,
    load_steps,
    measure_stiffness,
)
from tests.utils import perturb

lightning = pytest.importorskip('lightning', reason='needs lightning')
ResNet = pytest.importorskip('torchvision.models.resnet').ResNet


def network():
    from torchvision.models.resnet import BasicBlock
    torch.manual_seed(0)
    return perturb(ResNet(BasicBlock, [3, 1, 1, 1], num_classes=3))


class Module(lightning.LightningModule):

    def __init__(self, network):
        super().__init__()
        self.network = network

    def training_step(self, batch, index):
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.network(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(shuffle=False):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(12, 3, 32, 32, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(12) % 3), 4,
                      shuffle=shuffle)


def fit(model, tmp_path, *callbacks, epochs=1, ckpt_path=None, kind=Module,
        **options):
    torch.manual_seed(5)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator='cpu', logger=False, **options,
        default_root_dir=tmp_path, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[
            *callbacks, lightning.pytorch.callbacks.ModelCheckpoint(
                tmp_path, save_top_k=-1)])
    trainer.fit(kind(model), loader(shuffle=True), loader(),
                ckpt_path=ckpt_path)
    return trainer


def made(**options):
    from mmstepnet.integrations.lightning import StepsCallback
    return StepsCallback(**options)


def test_logs_calibrates_and_saves(tmp_path):
    model = network()
    insert_steps(model)
    gates = copy.deepcopy(model)
    seen = calibrate(gates, [b[0] for b in loader()])
    callback = made()
    start = callback.on_train_start
    kept = {}

    def on_train_start(trainer, module):
        start(trainer, module)
        kept.update(copy.deepcopy(model.state_dict()))

    callback.on_train_start = on_train_start
    trainer = fit(model, tmp_path, callback)
    assert seen == 3
    for key, value in gates.state_dict().items():
        torch.testing.assert_close(kept[key], value, msg=key)
    measured = measure_stiffness(model, [b[0] for b in loader()])
    logged = trainer.callback_metrics
    assert float(logged['tns']) == pytest.approx(measured.tns(), rel=1e-5)
    assert float(logged['nsi']) == pytest.approx(
        float(np.mean(measured.nsi())), rel=1e-5)
    saved, = tmp_path.glob('*.steps.safetensors')
    assert (tmp_path / f'{saved.name.split(".")[0]}.ckpt').is_file()
    again = network()
    assert load_steps(again, saved) == ['layer1.0', 'layer1.1', 'layer1.2']
    for key, value in again.state_dict().items():
        if '.step.' in key:
            assert torch.equal(value, model.state_dict()[key]), key


def test_batches_are_those_of_a_step(tmp_path):
    """In the trainer's precision, and behind the module's own hook."""

    class Halving(Module):

        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch[0] / 2, batch[1]

    model = network()
    insert_steps(model)
    trainer = fit(model, tmp_path, made(), kind=Halving,
                  precision='bf16-true')
    measured = measure_stiffness(model, [
        b[0].bfloat16() / 2 for b in loader()])
    assert float(trainer.callback_metrics['tns']) == pytest.approx(
        measured.tns(), rel=1e-5)


def test_a_killed_run_goes_on(tmp_path):
    """Statistics are not set anew: their counts are of one that ran through.

    Lightning does not restore the order of the samples.
    """

    class KilledError(Exception):
        pass

    class Kill(lightning.Callback):

        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                raise KilledError

    def build():
        model = network()
        insert_steps(model)
        return model

    whole, parts = build(), build()
    fit(whole, tmp_path / 'whole', made(measured_batches=0), epochs=2)
    with pytest.raises(KilledError):
        fit(parts, tmp_path / 'parts', made(), Kill(), epochs=2)
    first, = (tmp_path / 'parts').glob('*.ckpt')
    parts = build()
    torch.manual_seed(5)
    trainer = fit(parts, tmp_path / 'parts', made(), epochs=2, ckpt_path=first)
    assert trainer.global_step == 6
    for key, value in whole.state_dict().items():
        if 'num_batches_tracked' in key:
            assert torch.equal(value, parts.state_dict()[key]), key


def test_what_cannot_be_measured_ends_no_training(tmp_path, caplog):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 3))
    trainer = fit(model, tmp_path, made(save=False))
    assert trainer.global_step == 3
    assert 'the stiffness was not measured' in caplog.text
    assert 'tns' not in trainer.callback_metrics
    fit(model, tmp_path, made(measured_batches=0))
    assert 'the steps were not written' in caplog.text


def test_steps_are_those_of_each_checkpoint(tmp_path):
    """Averaged weights included, of several ModelCheckpoints."""
    kinds = lightning.pytorch.callbacks
    model = network()
    insert_steps(model)
    average = kinds.WeightAveraging(
        avg_fn=lambda averaged, current, count: averaged)  # the first weights
    fit(model, tmp_path, made(measured_batches=0), average,
        kinds.ModelCheckpoint(tmp_path / 'last', save_last=True,
                              save_top_k=1, every_n_train_steps=1))
    found = sorted(tmp_path.rglob('*.ckpt'))
    assert len(found) > 2
    assert sorted(tmp_path.rglob('*.steps.safetensors')) == [
        path.with_suffix('.steps.safetensors') for path in found]
    for path in found:
        checkpoint = torch.load(path, weights_only=False)
        state, live = (checkpoint[key] for key in (
            'state_dict', 'current_model_state'))
        again = network()
        load_steps(again, path.with_suffix('.steps.safetensors'))
        for key, value in again.state_dict().items():
            if '.step.' in key:
                assert torch.equal(value, state[f'network.{key}']), key
        bias = 'network.layer1.1.step.attention.ie_bias'
        assert not torch.equal(state[bias], live[bias])


def test_a_remote_folder_gets_checkpoints_alone(tmp_path, monkeypatch):
    """Steps would go into a local folder of that name."""
    monkeypatch.chdir(tmp_path)
    model = network()
    insert_steps(model)
    assert fit(model, 'memory://steps', made()).global_step == 3
    assert not list(tmp_path.rglob('*.safetensors'))


def test_batches_keep_their_order(tmp_path):
    """Of loaders and samplers with generators of their own."""

    class Seen(Module):

        def training_step(self, batch, index):
            orders[-1] += batch[1].tolist()
            return super().training_step(batch, index)

    orders = []
    images = TensorDataset(torch.rand(12, 3, 32, 32), torch.arange(12))
    for callbacks in ([], [made(save=False)]):
        model = network()
        model.fc = torch.nn.Linear(512, 12)
        insert_steps(model)
        orders.append([])
        loaders = [DataLoader(
            images, 4, sampler=RandomSampler(
                images, generator=torch.Generator().manual_seed(3)),
            generator=torch.Generator().manual_seed(4)) for _ in range(2)]
        lightning.Trainer(
            max_epochs=2, accelerator='cpu', logger=False,
            enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks,
            default_root_dir=tmp_path).fit(Seen(model), *loaders)
    assert orders[0] == orders[1]
