"""A program: writes the charts on its input, JSON by file name, as files."""

import json
import sys
from pathlib import Path

import vl_convert

for name, chart in json.load(sys.stdin).items():
    path = Path(name)
    if path.suffix == '.png':
        path.write_bytes(vl_convert.vegalite_to_png(chart, ppi=144))
    elif path.suffix == '.pdf':
        path.write_bytes(vl_convert.vegalite_to_pdf(chart))
    else:
        path.write_text(vl_convert.vegalite_to_svg(chart), 'utf-8')
