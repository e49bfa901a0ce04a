"""Train with Lightning, which logs the stiffness of the network (TNS)."""

import argparse

import lightning
import torch
import torch.nn.functional as F
from digits import load_split
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models.resnet import BasicBlock, ResNet

from mmstepnet import insert_steps, step_parameters
from mmstepnet.integrations.lightning import StepsCallback


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--attention', default='StepNet')
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', default='lightning_logs')
    return parser.parse_args()


class Classifier(lightning.LightningModule):
    """A network that learns to tell classes."""

    def __init__(self, network: nn.Module, lr: float):
        super().__init__()
        self.network, self.lr = network, lr

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        images, labels = batch
        hits = self.network(images).argmax(1) == labels
        self.log('accuracy', 100 * hits.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # Gates start at weights of zero and move slowly.
        return torch.optim.SGD(
            step_parameters(self.network, lr=10 * self.lr, weight_decay=0.0),
            lr=self.lr,
            momentum=0.9,
            weight_decay=1e-4,
        )

    def on_validation_end(self) -> None:
        logged = self.trainer.callback_metrics
        if 'tns' in logged:
            print(
                f'epoch {self.current_epoch + 1}: accuracy '
                f'{logged["accuracy"]:.2f} %, TNS {logged["tns"]:.4f}'
            )


def main() -> None:
    args = parse_args()
    lightning.seed_everything(args.seed)
    train, test = load_split()
    # Stages of one or two blocks have no TNS: ResNet-18's is 0.
    network = ResNet(BasicBlock, [3, 3, 1, 1], num_classes=10)
    blocks = insert_steps(network, args.attention, init_step=None)
    print(f'{args.attention} in {", ".join(blocks)}')
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator='cpu',
        num_sanity_val_steps=0,
        logger=CSVLogger(args.out),
        callbacks=[StepsCallback()],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    trainer.fit(
        Classifier(network, lr=0.02),
        DataLoader(train, 64, shuffle=True, drop_last=True),
        DataLoader(test, 120),
    )


if __name__ == '__main__':
    main()
