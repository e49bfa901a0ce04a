from argparse import ArgumentParser

import pytest

from mmstepnet.jobs.job import KeyValueAction


@pytest.mark.parametrize('text, value', [
    ('/data/my set (2)/x', '/data/my set (2)/x'),
    ('a  b', 'a  b'), ('[a b, c d]', ['a b', 'c d']),
    ('[(1, 2), [a, b c]]', [(1, 2), ['a', 'b c']]),
    ('( 1 , 2.5 )', (1, 2.5)), ('1, 2', [1, 2]), (' 3 ', 3),
    ('True', True), ('None', None), ('x,y z', ['x', 'y z'])])
def test_blanks_of_options(text, value):
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=KeyValueAction)
    found = parser.parse_args(['--cfg-options', f'k={text}']).cfg_options
    assert found == dict(k=value)
