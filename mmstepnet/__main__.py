"""``python -m mmstepnet`` is the command of the library."""

import sys

from .cli import main

sys.exit(main())
