"""Names by which a text, such as a config, chooses a class."""

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
            raise KeyError(f'{self.what} {cls.__name__!r} is registered '
                           f'already, as {self[cls.__name__]}')
        return cls

    def find(self, name: Any) -> type:
        """Look a class up.

        Args:
            name (str | type): Its name, with or without the scope
                ``mmstepnet.``, or a registered class itself.

        Raises:
            KeyError: It is not registered; the message lists what is.
        """
        if isinstance(name, type):
            found = name if name in self.values() else None
        else:
            found = self.get(str(name).removeprefix('mmstepnet.'))
        if found is None:
            raise KeyError(f'{self.what} {name!r} is unknown; registered are '
                           f'{sorted(self)}')
        return found
