from .hooks import *  # noqa: F403
