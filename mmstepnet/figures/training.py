"""TNS and the NSI of each block over the checkpoints of a training."""

import altair as alt
import numpy as np

from mmstepnet.stiffness.training import Training

from .style import block_names, chart, heat, number, panels, wrapped

UNITS = {'epoch': 'epoch', 'iter': 'iteration', 'weights': 'weights'}


def training_figure(name: str, training: Training) -> alt.ConcatChart:
    """TNS with its interval, and below it a heat map of NSI."""
    shown = training.checkpoints
    steps = [str(c.step) for c in shown]
    width = min(max(420, 16 * len(steps)), 1000)
    x = alt.X('step:O', sort=None, title=UNITS[training.unit],
              scale=alt.Scale(type='band'), axis=alt.Axis(
                  labelOverlap=True, labelLimit=0, labelAngle=(
                      -90 if training.unit == 'weights' else 0)))
    title = f'TNS ({training.reading})'
    over = chart(step=steps, tns=[c.tns for c in shown],
                 low=[c.low for c in shown], high=[c.high for c in shown])
    top = alt.layer(
        over.mark_area(opacity=0.2).encode(
            x, alt.Y('low:Q', title=title), alt.Y2('high:Q')),
        over.mark_line(point=True).encode(
            x, alt.Y('tns:Q', title=title), tooltip=[
                'step:O', number('tns', 'TNS'), number('low', '95 %: from'),
                number('high', 'to')]),
    ).properties(width=width, height=160, title=wrapped(name))
    nsi = np.stack([c.nsi for c in shown], 1)
    names = block_names(training.blocks)
    below = chart(step=steps * len(names), nsi=nsi.ravel(),
                  block=np.repeat(names, len(steps))).mark_rect().encode(
        x, alt.Y('block:N', sort=None, title=None, axis=alt.Axis(
            labelLimit=0, labelFontSize=10)),
        heat('nsi', 'mean NSI', float(nsi.max())),
        tooltip=['block:N', 'step:O', number('nsi', 'mean NSI')],
    ).properties(width=width, height=12 * len(names))
    return panels([top, below], columns=1, name=name)
