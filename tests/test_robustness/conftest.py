"""Counts the inputs that the tests of this folder try."""

from tests.test_robustness.inputs import TRIED


def pytest_terminal_summary(terminalreporter):
    if TRIED:
        terminalreporter.section('inputs tried')
        for area, count in sorted(TRIED.items()):
            terminalreporter.line(f'{area:<24}{count:>6}')
        terminalreporter.line(f'{"all":<24}{TRIED.total():>6}')
