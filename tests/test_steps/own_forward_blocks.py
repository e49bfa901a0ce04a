"""Blocks that add to their state in the ways in which people write it."""

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.utils import Adds

C = 8


class Conv(nn.Module):
    """Adds f = conv(x) to its state as ``add`` says."""

    add = staticmethod(lambda x, f: x + f)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1)

    def f(self, x: Tensor) -> Tensor:
        return self.conv(x)

    def forward(self, x):
        return type(self).add(x, self.f(x)).relu()


def _returned(value: Tensor, _) -> Tensor:
    return value


ADDITIONS = {
    'x + f': (lambda x, f: x + f, 1),
    'f + x': (lambda x, f: f + x, 1),
    'f += x': (lambda x, f: f.__iadd__(x), 1),
    'f.add_(x)': (lambda x, f: _returned(f, f.add_(x)), 1),
    'add(x, f)': (torch.add, 1),
    'add(input=x, other=f)': (lambda x, f: torch.add(input=x, other=f), 1),
    'add(x, f, alpha=0.5)': (lambda x, f: torch.add(x, f, alpha=0.5), 0.5),
    'x - f': (lambda x, f: x - f, -1),
    'add(other=f, input=x, alpha=0.5)': (lambda x, f: torch.add(
        other=f, input=x, alpha=0.5), 0.5),
    'sub(alpha=2, other=f, input=x)': (lambda x, f: torch.sub(
        alpha=2, other=f, input=x), -2),
    'sub(x, f, alpha=2)': (lambda x, f: torch.sub(x, f, alpha=2), -2),
    'addcmul': (lambda x, f: torch.addcmul(
        x, f, torch.full_like(f, 0.5), value=3), 1.5),
}
"""Spellings of a step, and the factor of the branch that they mean."""


class DualPath(Conv):
    """Adds to the first channels of its state alone."""

    def f(self, x: Tensor) -> Tensor:
        return self.conv(x)[:, :5]

    def forward(self, x):
        return torch.cat([x[:, :5] + self.f(x), x[:, 5:]], 1)


class Residual(nn.Module):
    """A residual connection within the branch, and a position, are no step."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, C, 1, 1))
        self.inner = nn.Conv2d(C, C, 1)
        self.outer = nn.Conv2d(C, C, 1)

    def f(self, x: Tensor) -> Tensor:
        y = x + self.position
        y = y * 2 + self.position.expand_as(y)
        return self.outer(self.inner(y) + self.position)

    def forward(self, x):
        return self.f(x) + x


class Encoder(nn.Module):
    """A Transformer's block, norms before or behind, on tokens (N, L, C)."""

    def __init__(self, post_norm: bool = False):
        super().__init__()
        self.attn = nn.Linear(C, C)
        self.mlp = nn.Linear(C, C)
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.post_norm = post_norm

    def attend(self, x: Tensor) -> Tensor:
        y = self.attn(x)
        return torch.softmax(y @ y.mT, -1) @ y

    def forward(self, x):
        if self.post_norm:
            x = self.ln1(x + self.attend(x))
            return self.ln2(x + self.mlp(x))
        x = x + self.attend(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Masked(Encoder):
    """It takes a mask of tokens in transformers' ways."""

    def forward(self, x, attention_mask=None):
        y = self.attn(self.ln1(x))
        scores = (y @ y.mT)[:, None]
        if attention_mask is not None and attention_mask.min() < 0:
            scores = scores + attention_mask
        elif attention_mask is not None:
            scores = scores.masked_fill(attention_mask == 0, -1e30)
        x = x + torch.softmax(scores[:, 0], -1) @ y
        return x + self.mlp(self.ln2(x))


class Parallel(Encoder):
    """Attention and MLP of one state: one step, added in two additions."""

    def forward(self, x):
        y = self.ln1(x)
        return x + self.attend(y) + self.mlp(y)


class Parallel2d(nn.Module):
    """The same of maps, where some of the sums are written in place."""

    kind = ''

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(C, C, 1), nn.Conv2d(C, C, 1)

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        if self.kind == 'a += x; a += b':
            a += x
            a += b
            return a
        if self.kind == 'a += x; b + a':
            a += x
            return b + a
        if self.kind == 'a += x; b += a':
            a += x
            b += a
            return b
        if self.kind == 'x += a; x += b':
            x += a
            x += b
            return x
        if self.kind == 'x += a; x + b':
            x += a
            return x + b
        return x + a + b


class Causal(Encoder):
    """A decoder's: no token sees a later one."""

    def attend(self, x: Tensor) -> Tensor:
        y = self.attn(x)
        hidden = torch.ones_like(y @ y.mT).triu(1).bool()
        scores = (y @ y.mT).masked_fill(hidden, -torch.inf)
        return torch.softmax(scores, -1) @ y


class LastChannels(Adds):
    """Maps or volumes with the channels last."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.LayerNorm(C), nn.Linear(C, C)))


class Volume(Adds):
    """(N, C, T, H, W)."""

    def __init__(self):
        super().__init__(nn.Conv3d(C, C, 3, padding=1))


class Kept(Conv):
    """Its state is used again by whoever calls it."""

    def forward(self, x):
        x += self.conv(x)
        return x


class Skip(nn.Module):
    """Such blocks, and the state before them."""

    make = Kept

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(self.make() for _ in range(3)))

    def forward(self, x):
        start = x * 1
        return self.blocks(start) + 3 * start


class Switched(Conv):
    """Takes another way where ``way`` is set."""

    way = ''

    def forward(self, x):
        f = self.conv(x)
        if self.way == 'checkpoint':
            return checkpoint(torch.add, x, f, use_reentrant=False)
        if self.way == 'reentrant':
            return checkpoint(torch.add, x, f, use_reentrant=True)
        if self.way == 'more':
            f = f + f
        if self.way == 'none':
            return x
        if self.way == 'after':
            return x + f + f
        return (x.clone() if self.way == 'another' else x) + f


class Dropping(Conv):
    """With stochastic depth as libraries write it."""

    style = 'timm'

    def drop(self, f: Tensor) -> Tensor:
        if not self.training:
            return f
        keep = 0.5
        noise = torch.empty(len(f), 1, 1, 1, dtype=f.dtype,
                            device=f.device).bernoulli_(keep)
        if self.style == 'timm':
            return f * noise.div_(keep)
        if self.style == 'in place':
            return f.div_(keep).mul_(noise)
        return f.div(keep) * noise

    def forward(self, x):
        return x + self.drop(self.conv(x) * 0.5)
