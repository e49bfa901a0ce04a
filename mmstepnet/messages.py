"""What the library says to whoever runs it."""

import logging
import warnings

LOGGER = logging.getLogger('mmstepnet')
"""Parent of the loggers of all modules. A program may give it a handler."""


class JobHandler(logging.Handler):
    """Writes into the log of a job, while there is one."""

    def is_open(self) -> bool:
        """Whether a job has a log now."""
        raise NotImplementedError


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
