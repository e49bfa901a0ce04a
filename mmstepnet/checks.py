"""Checks of arguments and of what is installed, for all packages."""

from argparse import ArgumentTypeError
from collections.abc import Collection
from importlib.util import find_spec
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
            raise ValueError(
                f'{owner}: {name} must be a positive integer, got {value!r}'
            )


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Refuse a value that is not one of the choices.

    Args:
        name (str): What the message calls it.
        value (Any): Its value.
        choices (Collection[str]): What it may be.

    Raises:
        ValueError: It is something else.
    """
    if value not in tuple(choices):
        raise ValueError(
            f'{name} must be one of {", ".join(choices)}, got {value!r}'
        )


def check_config(name: str, value: Any, example: str) -> None:
    """Refuse a value that is not a config.

    Args:
        name (str): What the message calls it.
        value (Any): Its value.
        example (str): A config, for the message.

    Raises:
        TypeError: It is no dict, or has no ``type``.
    """
    if not isinstance(value, dict) or 'type' not in value:
        raise TypeError(
            f"{name} must be a dict with 'type', such as "
            f'{example}, got {value!r}'
        )


def positive_int(text: str) -> int:
    """Type of an argument of the command line that counts something."""
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f'must be a positive integer, got {text}')
    return value


def check_installed(owner: str, *names: str, install: str) -> None:
    """Refuse to continue without packages that only one part needs.

    Args:
        owner (str): The part, for the message.
        *names (str): Import names of the packages.
        install (str): What pip is to install.

    Raises:
        ImportError: A package is missing.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ImportError(
            f'{owner} needs {" and ".join(missing)}: pip install {install}'
        )
