"""Draws docs/where_it_works_hard.png, the picture of README and first page.

From the three recordings in docs/recordings: ResNet-20 without an attention,
with SE and with StepNet, each trained once on scikit-learn's digits. It needs
``pip install altair numpy pillow vl-convert-python``.
"""

import io
import sys
from pathlib import Path

import altair as alt
import numpy as np
import vl_convert
from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
PICTURE = DOCS / 'where_it_works_hard.png'
NETWORKS = {
    'no attention': ('resnet20_plain', '#2f5fd0'),
    'with SE': ('resnet20_se', '#e07a1f'),
    'with StepNet': ('resnet20_stepnet', '#1f9d73'),
}
"""By the name in the picture: the recording, and the colour."""


def draw() -> alt.LayerChart:
    """Mean of ‖f ⊗ Δt‖ / ‖x‖ at each block, a line for each network."""
    points = []
    for network, (recording, _) in NETWORKS.items():
        with np.load(DOCS / 'recordings' / f'{recording}.npz') as recorded:
            sizes = recorded['unit'].mean(0).tolist()
        points += [
            dict(network=network, block=block, size=size)
            for block, size in enumerate(sizes, start=1)
        ]
    last = max(point['block'] for point in points)
    x = alt.X(
        'block:Q',
        title='block, from the input of the network to its output',
        scale=alt.Scale(domain=[0.8, last + 0.2], nice=False),
        axis=alt.Axis(values=[*range(1, last + 1)], format='d', grid=False),
    )
    y = alt.Y(
        'size:Q',
        title=[
            'size of what the block adds,',
            'over size of what it is given',
        ],
        scale=alt.Scale(domain=[0, 1.2]),
    )
    color = alt.Color(
        'network:N',
        legend=None,
        scale=alt.Scale(
            domain=[*NETWORKS], range=[color for _, color in NETWORKS.values()]
        ),
    )
    lines = alt.Chart(alt.InlineData(points)).encode(x, y, color)
    return (
        alt.layer(
            lines.mark_line(strokeWidth=3, point=alt.OverlayMarkDef(size=60)),
            lines.transform_filter(alt.datum.block == last)
            .mark_text(align='left', dx=12, fontSize=16, fontWeight='bold')
            .encode(text='network:N'),
        )
        .properties(
            title=alt.Title(
                'How hard does each block of a network work?',
                subtitle='three ResNet-20s that read digits',
            ),
            width=400,
            height=260,
        )
        .configure(background='white', padding=8, font='Arial, sans-serif')
        .configure_view(stroke=None)
        .configure_title(
            fontSize=18, subtitleFontSize=15, anchor='start', frame='group'
        )
        .configure_axis(
            labelFontSize=15,
            titleFontSize=15,
            titleFontWeight='normal',
            titlePadding=10,
            gridColor='#e6e9ef',
        )
    )


if __name__ == '__main__':
    picture = vl_convert.vegalite_to_png(draw().to_dict(), ppi=144)
    # A few colours are enough, and take a fifth of the bytes.
    Image.open(io.BytesIO(picture)).convert('RGB').quantize(32).save(
        sys.argv[1] if sys.argv[1:] else PICTURE, 'PNG', optimize=True
    )
