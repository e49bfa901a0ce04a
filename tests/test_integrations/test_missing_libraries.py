"""What a part of the package says where its library is missing."""

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize('part, library, install', [
    *((f'integrations.{name}', name.removesuffix('_attention'),
       name.removesuffix('_attention'))
      for name in ('lightning', 'torch_geometric', 'torchmetrics',
                   'transformers', 'transformers_attention')),
    ('figures', 'altair', "'mmstepnet[figures]'")])
def test_one_line_says_what_to_install(monkeypatch, part, library, install):
    name = f'mmstepnet.{part}'
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not there
    with pytest.raises(ImportError) as caught:
        import_module(name)
    assert str(caught.value) == (
        f'{name} needs {library}: pip install {install}')
