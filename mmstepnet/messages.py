"""What the library says to whoever runs it."""

import logging
import warnings

LOGGER = logging.getLogger('mmstepnet')
"""Parent of the loggers of all modules. Where a program has given it a
handler, as :mod:`mmstepnet.registry` does for OpenMMLab, that writes what they
say."""


def warn(text: str) -> None:
    """Warn in the program's log, or else by Python's warning.

    Args:
        text (str): What to say.
    """
    if LOGGER.handlers:
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
