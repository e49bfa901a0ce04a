"""Options of the programs under ``tools/`` that read a config of OpenMMLab.

Nothing here imports PyTorch: help is quick, and so is the refusal of a file
that is not there.
"""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path


def add_config_options(parser: ArgumentParser) -> None:
    """Add what every tool takes that reads a config and a checkpoint."""
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        type=_setting,
        default=[],
        metavar='KEY=VALUE',
        help='settings that override the config, such as '
        'train_dataloader.batch_size=4 optim_wrapper.optimizer.lr=0.1. '
        'Default: none',
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let checkpoints run the code that they name. Default: they '
        'are read as data, and others are refused',
    )
    parser.set_defaults(work_dir=None, launcher='none', local_rank='0')


def add_job_options(parser: ArgumentParser) -> None:
    """Add the arguments that training and testing have in common."""
    add_config_options(parser)
    parser.add_argument(
        '--work-dir',
        metavar='FOLDER',
        help='folder of logs and results. Default: work_dir of the config, '
        'or work_dirs/NAME_OF_THE_CONFIG',
    )
    parser.add_argument(
        '--launcher',
        help='what starts the processes. Default: none, so there is one',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
    )
    # torch.distributed.launch passes the one or the other spelling.
    parser.add_argument(
        '--local_rank',
        '--local-rank',
        help="set by PyTorch's launcher. Default: 0",
    )


def check_files(args: Namespace, checkpoint: str | None = None) -> None:
    """Refuse a config or a checkpoint that is not there.

    Args:
        args (Namespace): What was read of the command line, with ``config``
            where the program takes one.
        checkpoint (str, optional): A file. An address, such as one of
            ``https://``, is left to the host. Defaults to None.

    Raises:
        SystemExit: There is no such file.
    """
    if 'config' in args and not Path(args.config).is_file():
        raise SystemExit(f'there is no config file {args.config!r}')
    if checkpoint and '://' not in checkpoint:
        if not Path(checkpoint).expanduser().exists():
            raise SystemExit(f'there is no checkpoint {checkpoint!r}')


def _setting(text: str) -> str:
    if '=' not in text:
        raise ArgumentTypeError(f'must be KEY=VALUE, got {text!r}')
    return text
