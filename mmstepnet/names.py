"""Names by which configs choose a class."""

from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Any


class NameTableError(KeyError):
    """A name by which there is no class, or another one."""

    def __str__(self) -> str:
        """Give the text as it is; a KeyError would quote it as a key."""
        return str(self.args[0])


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
            raise NameTableError(
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
            raise NameTableError(
                f'{self.what} {name!r} is unknown; {self._suggest(name)}'
                f'registered are {", ".join(sorted(self))}'
            )
        return found

    def _suggest(self, name: Any) -> str:
        """Ask whether a registered name was meant that looks alike."""
        by_letters = {known.lower(): known for known in self}
        near = get_close_matches(str(name).lower(), by_letters, 1)
        return f'did you mean {by_letters[near[0]]!r}? ' if near else ''


def _load(path: str) -> Any:
    """Import what a dotted path names; None where there is no such thing."""
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return None
