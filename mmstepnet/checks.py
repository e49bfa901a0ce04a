"""Checks of arguments, for all packages."""

from collections.abc import Collection
from typing import Any


def check_positive(owner: str, **arguments: int) -> None:
    """Refuse what is not a positive integer.

    Args:
        owner (str): Name of the class that takes the arguments.
        **arguments (int): Their values.

    Raises:
        ValueError: A value is not a positive integer.
    """
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f'{owner}: {name} must be a positive integer, '
                             f'got {value!r}')


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Refuse what is none of the choices.

    Args:
        name (str): What the message calls it.
        value (Any): Its value.
        choices (Collection[str]): What it may be.

    Raises:
        ValueError: It is something else.
    """
    if value not in tuple(choices):
        raise ValueError(f'{name} must be one of {", ".join(choices)}, got '
                         f'{value!r}')


def check_config(name: str, value: Any, example: str) -> None:
    """Refuse what is no config of something to be built.

    Args:
        name (str): What the message calls it.
        value (Any): Its value.
        example (str): A config, for the message.

    Raises:
        TypeError: It is no dict, or has no ``type``.
    """
    if not isinstance(value, dict) or 'type' not in value:
        raise TypeError(f"{name} must be a dict with 'type', such as "
                        f'{example}, got {value!r}')
