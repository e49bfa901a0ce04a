"""Checks of arguments, for all packages."""


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
