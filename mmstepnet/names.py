"""Names by which configs choose a class."""

from pkgutil import resolve_name
from typing import Any


class NameTable(dict[str, type]):
    """Classes by their names.

    Args:
        what (str): What the classes are, for messages.

    Example:
        >>> GATES = NameTable('gate')
        >>> @GATES.register
        ... class Half:
        ...     pass
        >>> GATES.find('Half') is Half
        True
    """

    def __init__(self, what: str):
        super().__init__()
        self.what = what

    def register(self, cls: type) -> type:
        """Enter a class under its name; a decorator.

        Raises:
            KeyError: Another class has the name.
        """
        if self.setdefault(cls.__name__, cls) is not cls:
            raise KeyError(
                f'{self.what} {cls.__name__!r} is registered '
                f'already, as {self[cls.__name__]}'
            )
        return cls

    def find(self, name: Any) -> type:
        """Look a class up.

        Args:
            name (str | type): Its name, with or without the scope
                ``mmstepnet.``, a registered class itself, or the path by
                which it is imported, as dumped configs have it.

        Raises:
            KeyError: It is not registered; the message lists what is.
        """
        if isinstance(name, str):
            found = self.get(name.removeprefix('mmstepnet.')) or _load(name)
        else:
            found = name
        if found not in self.values():
            raise KeyError(
                f'{self.what} {name!r} is unknown; registered are '
                f'{sorted(self)}'
            )
        return found


def _load(path: str) -> Any:
    """Import what a dotted path names; None where there is no such thing."""
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return None
