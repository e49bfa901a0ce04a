"""Callbacks for the trainers of other libraries, one file a library.

For whoever trains by Lightning or by transformers. A file imports its library
when it is imported itself: ``from mmstepnet.integrations.lightning import
StepsCallback``.
"""
