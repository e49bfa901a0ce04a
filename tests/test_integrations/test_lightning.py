"""Lightning's trainer with steps, killed and resumed, and what it logs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from mmstepnet import calibrate, insert_steps, load_steps, measure_stiffness
from tests.utils import perturb, seeded

lightning = pytest.importorskip('lightning', reason='needs lightning')

from lightning.pytorch.callbacks import (  # noqa: E402
    LambdaCallback,
    ModelCheckpoint,
    WeightAveraging,
)
from lightning.pytorch.plugins import TorchCheckpointIO  # noqa: E402
from lightning.pytorch.utilities import CombinedLoader  # noqa: E402
from torchvision.models.resnet import BasicBlock, ResNet  # noqa: E402

from mmstepnet.integrations import trainers  # noqa: E402
from mmstepnet.integrations.lightning import StepsCallback  # noqa: E402


def network():
    torch.manual_seed(0)
    return perturb(ResNet(BasicBlock, [3, 1, 1, 1], num_classes=12))


def stepped():
    model = network()
    insert_steps(model)
    return model


class Module(lightning.LightningModule):
    """Remembers the order of its samples."""

    def __init__(self, network):
        super().__init__()
        self.network, self.seen = network, []

    def training_step(self, batch, index):
        self.seen += batch[1].tolist()
        # With its graph, which cannot be copied.
        self.loss = F.cross_entropy(self.network(batch[0]), batch[1])
        return self.loss

    def validation_step(self, batch, index):
        self.network(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Halving(Module):
    """Has a hook of its own for batches."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch[0] / 2, batch[1]


class Bodied(Module):
    """Has its network in a part of a part."""

    def training_step(self, batch, index):
        return self.network['body'](batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.network['body'](batch[0])


def loader():
    """It and its sampler have generators of their own."""
    data = TensorDataset(seeded(12, 3, 32, 32), torch.arange(12))
    return DataLoader(
        data,
        4,
        generator=torch.Generator().manual_seed(4),
        sampler=RandomSampler(
            data, generator=torch.Generator().manual_seed(3)
        ),
    )


def fit(
    model,
    tmp_path,
    *callbacks,
    epochs=1,
    ckpt_path=None,
    kind=Module,
    **options,
):
    """The trainer after a training, and the module in it."""
    torch.manual_seed(5)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator='cpu',
        logger=False,
        **options,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, ModelCheckpoint(tmp_path, save_top_k=-1)],
    )
    module = kind(model)
    trainer.fit(module, loader(), loader(), ckpt_path=ckpt_path)
    return trainer, module


@pytest.mark.parametrize(
    'kind, precision, prepare',
    [
        pytest.param(Module, '32-true', lambda x: x, id='float32'),
        pytest.param(
            Halving, 'bf16-true', lambda x: x.bfloat16() / 2, id='bfloat16'
        ),
    ],
)
def test_it_calibrates_and_logs(tmp_path, kind, precision, prepare):
    """By batches as a step gets them."""
    model, kept = stepped(), {}
    gates = copy.deepcopy(model).to(prepare(torch.ones(1)).dtype)
    batches = [prepare(batch[0]) for batch in loader()]
    assert calibrate(gates, batches) == 3
    trainer, _ = fit(
        model,
        tmp_path,
        StepsCallback(),
        LambdaCallback(
            on_train_start=lambda trainer, module: kept.update(
                copy.deepcopy(model.state_dict())
            )
        ),
        kind=kind,
        precision=precision,
    )
    torch.testing.assert_close(kept, dict(gates.state_dict()))
    measured, logged = (
        measure_stiffness(model, batches),
        {key: float(value) for key, value in trainer.callback_metrics.items()},
    )
    assert logged == pytest.approx(
        dict(tns=measured.tns(), nsi=measured.nsi().mean()), rel=1e-5
    )


class First(Module):
    """Is trained on the first of the loaders."""

    def training_step(self, batch, index):
        batch = batch['a'] if isinstance(batch, dict) else batch[0]
        return super().training_step(batch, index)

    def validation_step(self, batch, index, dataloader_idx=0):
        pass


def shifted(by):
    data = TensorDataset(seeded(8, 3, 32, 32) + by, torch.arange(8))
    return DataLoader(data, 4)


@pytest.mark.parametrize(
    'several, forward',
    [
        (lambda: [shifted(0), shifted(3)], None),
        (
            lambda: dict(a=shifted(0), b=shifted(3)),
            lambda net, batch: net(batch[0]),
        ),
        (lambda: dict(a=shifted(0), b=(shifted(3),)), None),
        (
            lambda: CombinedLoader(
                dict(a=shifted(0), b=shifted(3)), 'sequential'
            ),
            None,
        ),
    ],
    ids=['list', 'dict', 'nested', 'combined'],
)
def test_batches_of_several_loaders(tmp_path, several, forward):
    """Those of one after the other, also where it is in a dict."""
    model, kept = stepped(), {}
    gates = copy.deepcopy(model)
    batches = [
        batch[0] for loader in (shifted(0), shifted(3)) for batch in loader
    ]
    calibrate(gates, batches)
    trained = several()
    if isinstance(trained, CombinedLoader):
        trained = CombinedLoader(trained.iterables)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator='cpu',
        logger=False,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            StepsCallback(save=False, forward=forward),
            LambdaCallback(
                on_train_start=lambda trainer, module: kept.update(
                    copy.deepcopy(model.state_dict())
                )
            ),
        ],
    )
    trainer.fit(First(model), trained, several())
    torch.testing.assert_close(kept, dict(gates.state_dict()))
    measured, logged = (
        measure_stiffness(model, batches),
        {key: float(value) for key, value in trainer.callback_metrics.items()},
    )
    assert logged == pytest.approx(
        dict(tns=measured.tns(), nsi=measured.nsi().mean()), rel=1e-5
    )


def test_a_killed_run_goes_on(tmp_path):
    """Statistics are not set anew: their counts are of one that ran through.

    Its batches are those of a training without the callback. Lightning does
    not restore the order of the samples.
    """

    def kill(trainer, module):
        if trainer.current_epoch == 1:
            raise KeyError('killed')

    model, parts = stepped(), stepped()
    _, plain = fit(stepped(), tmp_path / 'plain', epochs=2)
    _, whole = fit(model, tmp_path / 'whole', StepsCallback(), epochs=2)
    assert whole.seen == plain.seen and len(plain.seen) == 24
    with pytest.raises(KeyError, match='killed'):
        fit(
            parts,
            tmp_path / 'parts',
            StepsCallback(),
            LambdaCallback(on_train_epoch_start=kill),
            epochs=2,
        )
    (first,) = (tmp_path / 'parts').glob('*.ckpt')
    parts = stepped()
    trainer, _ = fit(
        parts, tmp_path / 'parts', StepsCallback(), epochs=2, ckpt_path=first
    )
    assert trainer.global_step == 6
    for key, value in model.state_dict().items():
        if 'num_batches_tracked' in key:
            assert torch.equal(value, parts.state_dict()[key]), key


def test_what_cannot_be_measured_or_written_ends_no_training(
    tmp_path, caplog, monkeypatch
):
    """Steps of a remote folder would go into a local one of that name."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 12))
    trainer, _ = fit(model, tmp_path, StepsCallback())
    assert trainer.global_step == 3 and not trainer.callback_metrics
    assert 'stiffness was not measured' in caplog.text
    assert 'steps were not written' not in caplog.text  # there are none

    def full(*args):
        raise OSError('no space left')

    with monkeypatch.context() as patch:
        patch.setattr(trainers, 'save_steps', full)
        trainer, _ = fit(stepped(), tmp_path, StepsCallback())
    assert trainer.global_step == 3
    assert 'the steps were not written to' in caplog.text
    assert 'OSError: no space left' in caplog.text
    assert (
        fit(stepped(), 'memory://steps', StepsCallback())[0].global_step == 3
    )
    assert not list(tmp_path.rglob('*.safetensors'))


def test_steps_are_those_of_each_checkpoint(tmp_path):
    """Averaged weights included, of several ModelCheckpoints."""
    files, closed = TorchCheckpointIO(), []
    files.teardown = lambda: closed.append(files)
    average = WeightAveraging(
        avg_fn=lambda averaged, current, count: averaged
    )  # the first weights
    fit(
        stepped(),
        tmp_path,
        StepsCallback(measured_batches=0),
        average,
        ModelCheckpoint(
            tmp_path / 'last',
            save_last=True,
            save_top_k=1,
            every_n_train_steps=1,
        ),
        plugins=[files],
    )
    assert closed
    found = sorted(tmp_path.rglob('*.ckpt'))
    assert len(found) > 2
    assert sorted(tmp_path.rglob('*.steps.safetensors')) == [
        path.with_suffix('.steps.safetensors') for path in found
    ]
    for path in found:
        checkpoint = torch.load(path, weights_only=False)
        state, live = (
            checkpoint[key] for key in ('state_dict', 'current_model_state')
        )
        for file in path, path.with_suffix('.steps.safetensors'):
            again = network()
            load_steps(again, file)
            for key, value in again.state_dict().items():
                if '.step.' in key:
                    assert torch.equal(value, state[f'network.{key}']), key
        bias = 'network.layer1.1.step.attention.ie_bias'
        assert not torch.equal(state[bias], live[bias])


def test_names_of_steps_files(tmp_path):
    """Of a name ``.ckpt`` alone comes off; a link to a checkpoint has none."""
    names = 'run_0.{}', 'a{}.pt', '{}.tar.ckpt'
    wanted = {}

    def save(trainer, module, *_):
        k = trainer.global_step
        for name in names:
            trainer.save_checkpoint(tmp_path / name.format(k))
            wanted[name.format(k)] = (
                module.network.layer1[1]
                .step.attention.ie_bias.detach()
                .clone()
            )

    fit(
        stepped(),
        tmp_path,
        StepsCallback(measured_batches=0),
        LambdaCallback(on_train_batch_end=save),
        ModelCheckpoint(
            tmp_path, 'best', save_last='link', every_n_train_steps=3
        ),
    )
    assert (tmp_path / 'last.ckpt').is_symlink()
    assert len({float(bias.sum()) for bias in wanted.values()}) == 3
    assert {
        path.name.removesuffix('.steps.safetensors')
        for path in tmp_path.glob('*.safetensors')
    } == {
        'best',
        'epoch=0-step=3',
        *(name.removesuffix('.ckpt') for name in wanted),
    }
    for name, bias in wanted.items():
        for file in name, f'{name.removesuffix(".ckpt")}.steps.safetensors':
            load_steps(again := network(), tmp_path / file)
            found = again.layer1[1].step.attention.ie_bias
            assert torch.equal(found, bias), file
    load_steps(network(), tmp_path / 'last.ckpt')


@pytest.mark.parametrize('weights_only', [False, True])
def test_a_checkpoint_says_what_its_steps_are(tmp_path, weights_only):
    """Of any trainer that the callback is in, also behind its training."""
    model = stepped()
    trainer, module = fit(
        torch.nn.ModuleDict(dict(body=torch.compile(model, backend='eager'))),
        tmp_path,
        StepsCallback('network.body', calibration_batches=0),
        ModelCheckpoint(
            tmp_path,
            'during',
            save_weights_only=weights_only,
            every_n_train_steps=3,
        ),
        kind=Bodied,
    )
    files = [tmp_path / 'during.ckpt']
    if not weights_only:
        files.append(tmp_path / 'after')
        trainer.save_checkpoint(files[-1])
    for file in files:
        again = network()
        assert load_steps(again, file) == ['layer1.0', 'layer1.1', 'layer1.2']
        for key, value in model.state_dict().items():
            if '.step.' in key:
                assert torch.equal(again.state_dict()[key], value), key


class Named(Module):
    """Has its network under another name, and a loss beside it."""

    def __init__(self, network):
        super().__init__(network)
        self.loss_function = torch.nn.CrossEntropyLoss()
        self.model = self.network
        del self.network


@pytest.mark.parametrize(
    'kind, name, words',
    [
        pytest.param(
            Named, 'network', r"StepsCallback\('model'\)", id='other'
        ),
        pytest.param(
            Module, 'model', r"StepsCallback\('network'\)", id='ours'
        ),
        pytest.param(
            Bodied, 'network.tail', r"StepsCallback\('network'\)", id='inner'
        ),
    ],
)
def test_a_wrong_name_ends_before_the_training(tmp_path, kind, name, words):
    """Whatever the callback is there for."""
    callback = StepsCallback(name, calibration_batches=0, measured_batches=0)
    network = stepped()
    if kind is Bodied:
        network = torch.nn.ModuleDict(dict(body=network))
    with pytest.raises(AttributeError, match=f'{name}.*name the .*{words}'):
        fit(network, tmp_path, callback, kind=kind)
    assert not [*tmp_path.rglob('*.ckpt')]


def test_checkpoints_that_do_not_say_it(tmp_path):
    fit(stepped(), tmp_path, StepsCallback(save=False))
    (path,) = tmp_path.glob('*.ckpt')
    plain = network()
    keys = [*plain.state_dict()]
    with pytest.raises(ValueError, match=r'ckpt: it does not say .*insert_s'):
        load_steps(plain, path)
    for content in path.read_bytes()[:-100], b'hello', b'(hello':
        path.write_bytes(content)
        with pytest.raises(ValueError, match='ckpt: it is damaged, or holds'):
            load_steps(plain, path)
    assert [*plain.state_dict()] == keys


def test_a_checkpoint_of_a_network_in_peft(tmp_path):
    """It has other names; the file beside it has those of the network."""
    peft = pytest.importorskip('peft')
    config = peft.LoraConfig(target_modules=['conv1'])
    model = peft.get_peft_model(stepped(), config)
    fit(model, tmp_path, StepsCallback())
    (path,) = tmp_path.glob('*.ckpt')
    with pytest.raises(ValueError, match='no layer1.0.step.* as where PEFT'):
        load_steps(network(), path)
    beside = path.with_name(f'{path.stem}.steps.safetensors')
    assert load_steps(network(), beside) == [
        'layer1.0',
        'layer1.1',
        'layer1.2',
    ]
