"""Training and testing the configs of a table, one seed after the other.

What is done is skipped, what was interrupted goes on; several processes may
share the work, for each job is locked while it is under way.
"""

import shlex
from collections.abc import Sequence

from .launch import LaunchSettings
from .metafile import Cell
from .schedule import Schedule
from .training_job import Say, TrainingJob


def run_cells(cells: Sequence[Cell], seeds: Sequence[int],
              launch: LaunchSettings, *, dry_run: bool,
              say: Say) -> list[TrainingJob]:
    """Run every cell with every seed, seed by seed.

    Args:
        cells (Sequence[Cell]): Cells; those without a config are left out.
        seeds (Sequence[int]): Seeds.
        launch (LaunchSettings): How and where.
        dry_run (bool): Say what would be run, and run nothing.
        say (Callable): Is told the progress, line by line.

    Returns:
        list[TrainingJob]: Jobs that have no result yet: under way in other
        processes, or all that are left of a dry run.

    Raises:
        ValueError: No cell has a config, or a result does not fit.
        RuntimeError: Runs failed; raised after the others.
    """
    for cell in cells:
        if cell.config is None:
            say(f'{cell.row} ({cell.column}): cannot be run, there is no '
                'config')
    configs = {cell.name: cell for cell in cells if cell.config is not None}
    if not configs:
        raise ValueError('none of the chosen rows has a config')
    jobs = [TrainingJob(c, s, launch) for s in seeds
            for c in configs.values()]
    pending = [job for job in jobs if not job.is_done()]
    say(f'{len(jobs) - len(pending)} of {len(jobs)} runs are done')
    for config in dict.fromkeys(job.cell.config for job in pending):
        # An error of the last one is due before the first is trained.
        Schedule.read(config, launch.cfg_options, launch.gpus)
    if dry_run:
        for job in pending:
            _say_commands(job, say)
        return pending
    left, failed = [], []
    for number, job in enumerate(pending, len(jobs) - len(pending) + 1):
        say(f'run {number} of {len(jobs)}: {job}')
        try:
            if not job.execute(say):
                left.append(job)
        except (RuntimeError, ValueError, OSError) as error:
            failed.append(f'{job}: {error}')
            say(f'failed: {failed[-1]}')
    if failed:
        raise RuntimeError('\n'.join(
            [f'{len(failed)} of {len(jobs)} runs failed:', *failed]))
    return left


def _say_commands(job: TrainingJob, say: Say) -> None:
    job.check_folder()
    schedule = job.schedule()
    point = job.last_checkpoint(schedule)
    epoch, checkpoint = point or (0, None)
    say(f'{job}: {epoch} of {schedule.max_epochs} epochs are trained')
    if epoch < schedule.max_epochs:
        checkpoint = job.interim_checkpoint(epoch) or checkpoint
        say('  ' + shlex.join(job.train_command(schedule, checkpoint)))
        checkpoint = job.folder / f'epoch_{schedule.max_epochs}.pth'
    say('  ' + shlex.join(job.test_command(checkpoint)))
