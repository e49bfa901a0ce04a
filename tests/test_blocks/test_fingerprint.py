"""Fingerprints of what a forward computes."""

import hashlib

import torch

from mmstepnet.blocks import fingerprint


def test_the_fingerprint_is_that_of_python_3_11():
    """Python 3.10 writes brackets around the tuples that are assigned to."""

    def forward(self, x):
        y, (z, _) = self.f(x)
        for i, (w, _) in enumerate(y):
            z += w[i, 0]
        return z, [a for a, _ in y]

    text = ('def forward(self, x):\n'
            '    y, (z, _) = self.f(x)\n'
            '    for i, (w, _) in enumerate(y):\n'
            '        z += w[i, 0]\n'
            '    return (z, [a for a, _ in y])')
    assert fingerprint(forward) == hashlib.sha256(
        text.encode()).hexdigest()[:12]


def test_the_fingerprint_is_of_what_is_computed():

    def forward(self, x):
        return self.norm(x + 1)

    given = fingerprint(forward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Say what it does."""
        # And how.
        return self.norm(
            x + 1)

    assert fingerprint(forward) == given

    def forward(self, x):
        return self.norm(x + 2)

    assert fingerprint(forward) != given
