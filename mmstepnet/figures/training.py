"""TNS and the NSI of each block over the checkpoints of a training."""

import altair as alt
import numpy as np

from mmstepnet.stiffness import Trajectories

from .style import block_names, chart, heat, number, panels, wrapped


def training_figure(
    name: str, training: list[Trajectories], reading: str
) -> alt.ConcatChart:
    """TNS with its interval, and below it a heat map of NSI."""
    unit = training[0].checkpoint[0]
    steps = [str(found.checkpoint[1]) for found in training]
    width = min(max(420, 16 * len(steps)), 1000)
    x = alt.X(
        'step:O',
        sort=None,
        title=unit,
        scale=alt.Scale(type='band'),
        axis=alt.Axis(
            labelOverlap=True,
            labelLimit=0,
            labelAngle=(-90 if unit == 'weights' else 0),
        ),
    )
    title = f'TNS ({reading})'
    low, high = zip(*(found.tns_interval(reading) for found in training))
    over = chart(
        step=steps,
        tns=[found.tns(reading) for found in training],
        low=low,
        high=high,
    )
    top = alt.layer(
        over.mark_area(opacity=0.2).encode(
            x, alt.Y('low:Q', title=title), alt.Y2('high:Q')
        ),
        over.mark_line(point=True).encode(
            x,
            alt.Y('tns:Q', title=title),
            tooltip=[
                'step:O',
                number('tns', 'TNS'),
                number('low', '95 %: from'),
                number('high', 'to'),
            ],
        ),
    ).properties(width=width, height=160, title=wrapped(name))
    nsi = np.stack([found.nsi(reading).mean(0) for found in training], 1)
    names = block_names(training[0].blocks)
    below = (
        chart(
            step=steps * len(names),
            nsi=nsi.ravel(),
            block=np.repeat(names, len(steps)),
        )
        .mark_rect()
        .encode(
            x,
            alt.Y(
                'block:N',
                sort=None,
                title=None,
                axis=alt.Axis(labelLimit=0, labelFontSize=10),
            ),
            heat('nsi', 'mean NSI', float(nsi.max())),
            tooltip=['block:N', 'step:O', number('nsi', 'mean NSI')],
        )
        .properties(width=width, height=12 * len(names))
    )
    return panels([top, below], columns=1, name=name)
