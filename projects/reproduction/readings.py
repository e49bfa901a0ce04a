"""What results hold of stiffness, by reading of NSI and by mean.

A result keeps TNS in the readings of NSI that the recorder makes (adaptive,
unit, returned) and with both means μ of Definition 2 and Eq. 15 (over the
stage, over all blocks). Older results hold one number, which is the adaptive
reading with the mean over the stage.
"""

from typing import Any, NamedTuple

MEANS = {'stage': 'μ over the stage', 'all': 'μ over all blocks'}


class Reading(NamedTuple):
    """How a number of stiffness is to be understood.

    Attributes:
        nsi (str): Reading of NSI.
        mu (str, optional): Blocks that the mean is over, None for numbers
            without one.
    """

    nsi: str
    mu: str | None = None

    def __str__(self) -> str:
        text = f'{self.nsi} NSI'
        return text if self.mu is None else f'{text}, {MEANS[self.mu]}'


DEFAULT = Reading('adaptive', 'stage')
"""That of older results."""


def stiffness_by_reading(result: dict[str, Any],
                         key: str) -> dict[Reading, Any]:
    """A number of a result's stiffness in each reading.

    Args:
        result (dict): A result.
        key (str): ``'tns'``, ``'p_hat'``, ``'few_stiff'``,
            ``'correlation'`` or ``'along'``, see
            :func:`~projects.reproduction.stiffness.summarise_stiffness`.

    Returns:
        dict: Values by reading; empty where nothing was measured.
    """
    found = (result.get('stiffness') or {}).get(key)
    if found is None:
        return {}
    mu = None if key in ('correlation', 'along') else DEFAULT.mu
    if not isinstance(found, dict):
        return {Reading(DEFAULT.nsi, mu): found}
    if key in ('tns', 'p_hat'):
        return {Reading(nsi, mu): value for nsi, means in found.items()
                for mu, value in means.items()}
    return {Reading(nsi, mu): value for nsi, value in found.items()
            if value is not None}
