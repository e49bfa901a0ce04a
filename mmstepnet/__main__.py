"""``python -m mmstepnet`` is the command ``mmstepnet``."""

import sys

from .cli import main

sys.exit(main())
