"""StepNet's adaptor.

Understanding Self-attention Mechanism via Dynamical System Perspective,
ICCV 2023, https://arxiv.org/abs/2308.09939
"""

import torch
import torch.nn as nn
from torch import Tensor

from mmstepnet.checks import check_choice

from .base import ATTENTIONS, Attention, ChannelGate, normalise

INPUTS = ('both', 'x', 'x_next', 'difference')


class Adaptor(Attention):
    r"""Attention that ends in IEBN (Appendix F), behind a mix of the states.

    .. math::
        \Delta t = \sigma(W_{IE} \otimes \mathrm{BN}(z(x_t, f(x_t)))
        + b_{IE})

    with :math:`W_{IE} = 0` and :math:`b_{IE} = -1` at the start, hence
    :math:`\Delta t = \sigma(-1) = 0.2689` everywhere. Subclasses, of either
    kind of attention, mix the states to z, and extend ``init_mix()`` where
    weights of their own mix them.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Attention`. The gate starts
            constant because :math:`W_{IE} = 0`; it is scaled by
            ``init_step / sigmoid(-1)``, so that from 1 it reaches at most
            e + 1 = 3.718. Defaults to None.
    """

    first_block = False
    initial_logits = (-1.0,)

    def __init__(self, channels: int, *, init_step: float | None = None):
        super().__init__(channels, init_step=init_step)
        self.bn = nn.BatchNorm1d(channels)
        self.ie_weight = nn.Parameter(torch.empty(channels))
        self.ie_bias = nn.Parameter(torch.empty(channels))

    def init_weights(self) -> None:
        super().init_weights()
        self.init_mix()
        nn.init.zeros_(self.ie_weight)
        nn.init.constant_(self.ie_bias, -1.0)

    def init_mix(self) -> None:
        """Bring weights that mix the states to their start; none here."""

    def gate(self, z: Tensor) -> Tensor:
        """Turn the mixed states z into the step, both (N, C).

        Raises:
            ValueError: Training with one image, of which BN has no variance.
        """
        normed = normalise(self, self.bn, z)
        logits = self.ie_weight * normed + self.ie_bias
        return torch.sigmoid(logits) * self.scale


@ATTENTIONS.register
class StepNet(Adaptor, ChannelGate):
    r"""Step chosen from two neighbouring states (§2.5, Fig. 4, Appendix F).

    .. math::
        p &= \mathrm{GAP}(x_t), \qquad
        q = \mathrm{GAP}(x_t + f(x_t)) = p + \mathrm{GAP}(f(x_t)) \\
        z_c &= w_{c0}\, p_c + w_{c1}\, q_c \\
        \Delta t &= \sigma(W_{IE} \otimes \mathrm{BN}(z) + b_{IE})

    with :math:`W_{IE} = 0` and :math:`b_{IE} = -1` at the start, hence
    :math:`\Delta t = \sigma(-1) = 0.2689` everywhere. 6 parameters a channel.

    Readings, not facts; no code of the authors is public and the figures of
    our copy are lost. The paper's parameter counts (Table 1) ask for 6 a
    channel, which leaves the "group convolution with kernel size 1" 2 weights
    a channel and no bias. They do not say which pooled values it joins; that
    it is the pair :math:`(p_c, q_c)` of a channel is a reading. So is that a
    block whose identity is projected carries no adaptor (``first_block``):
    in the post-activation form, which we take, the count for CIFAR-100 asks
    for it, while in pre-activation the counts fit with and without.

    "IEBN" in Fig. 4 has three readings of 6 parameters a channel; with
    :math:`\hat z` the normalised z and :math:`\gamma`, :math:`\beta` the
    affine parameters of the BN:

    - :math:`\sigma(W_{IE} \otimes \mathrm{BN}(z) + b_{IE})`, what the
      appendix says: ``iebn='appendix'``. It starts at 0.2689 everywhere.
    - :math:`\sigma(\gamma\, \sigma(W_{IE} \otimes z + b_{IE})\, \hat z
      + \beta)`, a sigmoid over the module that the paper cites,
      https://arxiv.org/abs/1908.04008: ``iebn='cited'``. It starts near 0.5
      and adapts from the first step.
    - A BN behind the linear map, :math:`\sigma(\mathrm{BN}(W_{IE} \otimes z
      + b_{IE}))`, which is not here.

    Args:
        channels (int): Channels C.
        init_step (float, optional): See :class:`Attention`. The gate starts
            constant because :math:`W_{IE} = 0`; it is scaled by
            ``init_step / sigmoid(-1)``, so that from 1 it reaches at most
            e + 1 = 3.718. Defaults to None.
        inputs (str): What the adaptor sees, the first half of Table 4:
            ``'both'``, F(x_{t+1}, x_t); ``'x'``, F(x_t) from p alone;
            ``'x_next'``, F(x_{t+1}) from q alone; ``'difference'``,
            F(x_{t+1} - x_t) from GAP(f) alone. A single input has one weight
            a channel (a reading). Defaults to ``'both'``.
        iebn (str): The reading of IEBN, ``'appendix'`` or ``'cited'``. The
            latter takes the reference path, is not folded, and starts
            constant at ``init_step`` because :math:`\gamma = 0`. Defaults to
            ``'appendix'``.

    Raises:
        ValueError: ``inputs`` is none of the four, or ``iebn`` of the two.
    """

    recorded = ('inputs', 'iebn')

    def __init__(
        self,
        channels: int,
        *,
        init_step: float | None = None,
        inputs: str = 'both',
        iebn: str = 'appendix',
    ):
        super().__init__(channels, init_step=init_step)
        check_choice('StepNet: inputs', inputs, INPUTS)
        check_choice('StepNet: iebn', iebn, ('appendix', 'cited'))
        self.inputs, self.iebn = inputs, iebn
        if iebn == 'cited':
            self.initial_logits = (0.0,)
            self.set_init_step(init_step)
            self.bn = nn.BatchNorm1d(channels, affine=False)
            self.weight = nn.Parameter(torch.empty(channels))
            self.bias = nn.Parameter(torch.empty(channels))
        self.pair_weight = nn.Parameter(
            torch.empty(channels, 2 if inputs == 'both' else 1)
        )
        self.init_weights()

    @property
    def pooled(self) -> tuple[str, ...]:
        """Statistics that ``inputs`` needs, see :class:`ChannelGate`."""
        return {'x': ('x_mean',), 'difference': ('f_mean',)}.get(
            self.inputs, ('x_mean', 'f_mean')
        )

    def init_mix(self) -> None:
        """Bring the parameters of the mix to their starting values."""
        # PyTorch's default for a convolution of this fan-in.
        bound = self.pair_weight.shape[1] ** -0.5
        nn.init.uniform_(self.pair_weight, -bound, bound)
        if self.iebn == 'cited':
            nn.init.constant_(self.weight, float(self.init_step is None))
            nn.init.zeros_(self.bias)

    def forward(self, *means: Tensor) -> Tensor:
        """Choose the step, (N, C), from what :attr:`pooled` names."""
        if len(means) == 2:
            p, f_mean = means
            q = p + f_mean
            means = (p, q) if self.inputs == 'both' else (q,)
        weight = self.pair_weight
        z = weight[:, 0] * means[0].to(weight.dtype)
        if len(means) == 2:
            z = z + weight[:, 1] * means[1].to(weight.dtype)
        return self.gate(z)

    def gate(self, z: Tensor) -> Tensor:
        """Turn the mixed states z into the step, both (N, C)."""
        if self.iebn == 'appendix':
            return super().gate(z)
        enhanced = torch.sigmoid(self.ie_weight * z + self.ie_bias)
        normed = normalise(self, self.bn, z)
        return (
            torch.sigmoid(self.weight * enhanced * normed + self.bias)
            * self.scale
        )


class FoldedStepNet(ChannelGate):
    r"""StepNet's adaptor with frozen statistics, three numbers a channel.

    .. math::
        \Delta t = k\, \sigma(w_0\, p + w_1\, q + b)

    with p and q as in :class:`StepNet`.

    Args:
        adaptor (StepNet): The adaptor to take the place of. Its BN's running
            statistics are used, whatever mode it is in.
    """

    pooled = ('x_mean', 'f_mean')
    initial_logits = StepNet.initial_logits

    def __init__(self, adaptor: StepNet):
        super().__init__(adaptor.channels, init_step=adaptor.init_step)
        with torch.no_grad():
            slope, offset = adaptor.ie_weight, adaptor.ie_bias
            if not isinstance(adaptor.bn, nn.Identity):
                bn = adaptor.bn
                deviation = (bn.running_var + bn.eps).sqrt()
                offset = offset + slope * (
                    bn.bias - bn.running_mean * bn.weight / deviation
                )
                slope = slope * bn.weight / deviation
            pair = adaptor.pair_weight @ slope.new_tensor(
                {
                    'both': ((1, 0), (0, 1)),
                    'x': ((1, 0),),
                    'x_next': ((0, 1),),
                    'difference': ((-1, 1),),  # GAP(f) = q - p
                }[adaptor.inputs]
            )
            self.pair_weight = nn.Parameter(pair * slope[:, None])
            self.ie_bias = nn.Parameter(offset.clone())

    def reset_parameters(self) -> None:
        """Bring all to the start that StepNet's has."""
        nn.init.zeros_(self.pair_weight)
        nn.init.constant_(self.ie_bias, self.initial_logits[0])

    def forward(self, p: Tensor, f_mean: Tensor) -> Tensor:
        """Choose the step, (N, C), from what :attr:`pooled` names."""
        first, second = self.pair_weight.unbind(1)
        p, f_mean = p.to(first.dtype), f_mean.to(first.dtype)
        logits = first * p + second * (p + f_mean) + self.ie_bias
        return torch.sigmoid(logits) * self.scale
