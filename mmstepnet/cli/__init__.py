"""The command ``mmstepnet``: stiffness of any network, without a script.

For whoever has a trained network and pictures. Names of models and folders go
in; printed numbers, recordings and a page come out.
"""

from .arguments import main

__all__ = ['main']
