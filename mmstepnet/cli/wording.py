"""What is said of an exception to somebody who does not read its frames."""

from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError

PLAIN = ValueError, KeyError, OSError, ImportError, RuntimeError
"""Exceptions whose text is a sentence of its own."""

REFUSALS = (*PLAIN, AssertionError, AttributeError, UnpicklingError)
"""Exceptions by which a command or what it is given is refused."""

UNCONNECTED = {
    'URLError',
    'ConnectionError',
    'ConnectError',
    'ConnectTimeout',
    'ProxyError',
    'gaierror',
}
"""Exceptions of urllib, requests, httpx and Python where nothing is reached.
By their names, because none of these is imported here."""


def in_one_line(error: BaseException) -> str:
    """The text of an exception, its kind before it where that says more."""
    # str() of a KeyError puts its text between quotes.
    is_key = isinstance(error, KeyError) and error.args
    text = ' '.join(str(error.args[0] if is_key else error).split())
    if isinstance(error, PLAIN) and text:
        return text
    return f'{type(error).__name__}: {text}'.rstrip(': ')


def is_of_the_internet(error: BaseException | None) -> bool:
    """Whether an exception comes from a connection that was not made."""
    while error is not None:
        if UNCONNECTED & {kind.__name__ for kind in type(error).__mro__}:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """End a program that refuses something in one line.

    Raises:
        SystemExit: It has; the line is its text.
    """
    try:
        yield
    except REFUSALS as error:
        raise SystemExit(in_one_line(error)) from error
