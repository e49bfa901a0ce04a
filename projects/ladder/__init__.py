"""From a plain network to an adaptive step, rung by rung.

For whoever asks whether a gate brings more than a constant. Networks,
pictures, rungs and rows of the two ladders are here: ``projects.recipes``
fine-tunes networks that others have trained, ``projects.ladder.scratch``
trains from scratch. On PyTorch alone.
"""
