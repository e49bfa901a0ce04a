"""What the library says to whoever runs it."""

import logging
import warnings

LOGGER = logging.getLogger('mmstepnet')
"""Parent of the loggers of all modules. A program may give it a handler."""


class JobHandler(logging.Handler):
    """Writes into the log of a job; without one it is as if it were absent."""

    def is_open(self) -> bool:
        """Whether a job has a log now."""
        raise NotImplementedError

    def write(self, level: int, text: str) -> None:
        """Write into the log of the job."""
        raise NotImplementedError

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or leave it to what Python does without handlers."""
        last = logging.lastResort
        if self.is_open():
            self.write(record.levelno, record.getMessage())
        elif (
            last and record.levelno >= last.level and not logging.root.handlers
        ):
            last.handle(record)


def inform(text: str) -> None:
    """Say what was done, in the log of a job; else whoever asks for INFO.

    Args:
        text (str): What to say.
    """
    for handler in LOGGER.handlers:
        if isinstance(handler, JobHandler) and handler.is_open():
            handler.write(logging.INFO, text)
            return
    LOGGER.info('%s', text)


def warn(text: str) -> None:
    """Warn in the program's log, or else by Python's warning.

    Args:
        text (str): What to say.
    """
    if any(
        not isinstance(handler, JobHandler) or handler.is_open()
        for handler in LOGGER.handlers
    ):
        LOGGER.warning('%s', text)
    else:
        warnings.warn(text, stacklevel=3)


def shorten(names: list[str], most: int = 4) -> str:
    """Names in a sentence: all, or the first ones and the last one.

    Args:
        names (list[str]): The names.
        most (int): How many are shown. Defaults to 4.

    Example:
        >>> shorten(['conv1', 'bn1', 'relu', 'maxpool', 'fc'])
        'conv1, bn1, relu, …, fc'
    """
    if len(names) > most:
        names = [*names[: most - 1], '…', names[-1]]
    return ', '.join(names)
