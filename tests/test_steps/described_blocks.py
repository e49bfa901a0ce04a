"""Small blocks with descriptions."""


import torch.nn as nn

from mmstepnet.blocks import (
    StepDescription,
    register_block,
)


class Conv(nn.Module):
    """x + norm(conv(x)), rectified, with a projection where asked for."""

    def __init__(self, width, projects=False, identity=True):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(width, width, 1) if projects else None
        self.act = nn.PReLU()
        self.identity = identity

    def forward(self, x):
        f = self.norm(self.conv(x))
        if not self.identity:
            return self.act(f)
        return self.act(f + (x if self.down is None else self.down(x)))


class Encoder(nn.Module):
    """x + attn(x), then x + mlp(x), with a gain given from outside."""

    def __init__(self, width):
        super().__init__()
        self.attn = nn.Linear(width, width)
        self.mlp = nn.Linear(width, width)

    def forward(self, x, gain):
        x = x + self.attn(x) * gain
        return x + self.mlp(x)


class Last(Encoder):
    """The same with channels last, (N, H, W, C)."""


register_block(
    Conv,
    StepDescription(
        lambda block, x: block.conv(x), width='norm', norm='norm',
        identity='down', activation='act'),
    residual='identity')
for cls, layout in ((Encoder, 'NLC'), (Last, 'NHWC')):
    register_block(
        cls,
        StepDescription(
            lambda block, x, gain: block.attn(x) * gain, width='attn',
            layout=layout, name='attn_step'),
        StepDescription(
            lambda block, x: block.mlp(x), width='mlp', layout=layout,
            name='mlp_step'))


class PostNorm(nn.Module):
    """norm(x + attn(x)), then norm(x + mlp(x))."""

    def __init__(self, width):
        super().__init__()
        self.attn, self.mlp = (nn.Linear(width, width) for _ in range(2))
        self.norm1, self.norm2 = (nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


register_block(
    PostNorm, *(
        StepDescription(
            lambda block, x, part=part: getattr(block, part)(x), width=part,
            layout='NLC', activation=f'norm{k}', name=f'{part}_step')
        for k, part in ((1, 'attn'), (2, 'mlp'))))


class Deep(nn.Module):
    """Two branches with stochastic depth."""

    def __init__(self, width):
        super().__init__()
        self.attn = nn.Linear(width, width)
        self.drop, self.drop2 = nn.Dropout(1.0), nn.Dropout(1.0)
        self.mlp = nn.Linear(width, width)

    def forward(self, x):
        f = self.attn(x)
        x = x + (f if self.drop is None else self.drop(f))
        return x + self.drop2(self.mlp(x))


register_block(
    Deep, *(
        StepDescription(
            lambda block, x, part=part: getattr(block, part)(x),
            width=part, layout='NLC', drop_path=drop, name=f'{part}_step')
        for part, drop in (('attn', 'drop'), ('mlp', 'drop2'))))


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(Conv(8, projects=True), Conv(8))
        self.layer2 = nn.Sequential(
            Conv(8, projects=True), Conv(8), Conv(8, identity=False))

    def forward(self, x):
        return self.layer2(self.layer1(x))
