"""``python -m mmstepnet``: stiffness of any network, without a script.

For whoever has a trained network and pictures or texts. Names of models and
folders go in; printed numbers, recordings and a page come out.
"""

from .commands import main

__all__ = ['main']
