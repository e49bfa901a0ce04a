"""Train a network of transformers with steps, by its Trainer."""

import argparse

import numpy as np
import torch
from digits import load_split
from torch.utils.data import TensorDataset
from transformers import (
    EvalPrediction,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from mmstepnet import insert_steps, load_steps, step_parameters
from mmstepnet.integrations.transformers import StepsCallback


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--attention', default='StepNet')
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--out', default='hf_trainer')
    return parser.parse_args()


def build(attention: str) -> ResNetForImageClassification:
    """A small ResNet; of a pretrained one keep ``init_step=1.0``."""
    model = ResNetForImageClassification(
        ResNetConfig(
            embedding_size=32,
            hidden_sizes=[32, 64, 128],
            depths=[3, 3, 3],
            layer_type='basic',
            num_labels=10,
        )
    )
    insert_steps(model, attention, init_step=None)
    return model


def collate(rows: list[tuple]) -> dict:
    images, labels = zip(*rows)
    return dict(pixel_values=torch.stack(images), labels=torch.stack(labels))


def measure(prediction: EvalPrediction) -> dict[str, float]:
    hits = np.argmax(prediction.predictions, 1) == prediction.label_ids
    return dict(accuracy=100 * float(hits.mean()))


def fit(
    model: torch.nn.Module,
    train: TensorDataset,
    test: TensorDataset,
    args: argparse.Namespace,
) -> Trainer:
    lr = 2e-3
    trainer = Trainer(
        model,
        TrainingArguments(
            args.out,
            num_train_epochs=args.epochs,
            seed=args.seed,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=120,
            lr_scheduler_type='cosine',
            eval_strategy='epoch',
            save_strategy='no',
            report_to='none',
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=True,
        ),
        data_collator=collate,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=measure,
        callbacks=[StepsCallback()],
        # The Trainer's own would give gates the others' rate and decay.
        optimizers=(
            torch.optim.AdamW(
                step_parameters(model, lr=10 * lr, weight_decay=0.0),
                lr=lr,
                weight_decay=0.05,
            ),
            None,
        ),
    )
    trainer.train()
    return trainer


def main() -> None:
    args = parse_args()
    set_seed(args.seed)
    train, test = load_split()
    trainer = fit(build(args.attention), train, test, args)
    found = trainer.evaluate()
    print(
        f'{args.attention}: accuracy {found["eval_accuracy"]:.2f} %, '
        f'TNS {found["eval_tns"]:.4f}'
    )

    # transformers knows nothing of the steps: load_steps puts them in again.
    trainer.save_model(args.out)
    trainer.model = ResNetForImageClassification.from_pretrained(args.out)
    load_steps(trainer.model, args.out)
    again = trainer.evaluate()['eval_accuracy']
    print(f'read from {args.out}: accuracy {again:.2f} %')


if __name__ == '__main__':
    main()
