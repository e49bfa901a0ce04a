"""Which hosts this package runs on, checked when they are needed."""

from importlib import import_module, metadata

from torch.torch_version import TorchVersion

# Both stacks share their import names, so only one of a row can be installed.
STACKS = {
    'onedl': (
        'onedl-mmengine',
        'onedl-mmcv',
        'onedl-mmdetection',
        'onedl-mmpretrain',
    ),
    'openmmlab': ('mmengine', 'mmcv', 'mmdet', 'mmpretrain'),
}

# Import name: lowest version, first version that is too new. The upper ends
# hold for the forks as well.
VERSIONS = {
    'mmengine': ('0.10.3', '1.0.0'),
    'mmcv': ('2.1.0', '2.4.0'),
    'mmpretrain': ('1.2.0', '2.0.0'),
    'mmdet': ('3.3.0', '4.0.0'),
    'mmseg': ('1.2.2', '2.0.0'),
}

FIX = (
    'install one of the pinned sets of docs/install_and_versions.md, in an '
    'environment of its own: requirements/onedl.txt or '
    'requirements/openmmlab.txt'
)


def check_hosts(*names: str) -> None:
    """Refuse an environment in which the hosts cannot work together.

    Args:
        *names (str): Import names to look at, of those in ``VERSIONS``.

    Raises:
        ImportError: A host is missing, too old or too new, or both stacks are
            installed over each other; the message names the fix.
    """
    installed = {
        stack: [
            package
            for package in packages
            if any(metadata.distributions(name=package))
        ]
        for stack, packages in STACKS.items()
    }
    if all(installed.values()):
        raise ImportError(
            'two OpenMMLab stacks are installed over each other: '
            f'{", ".join(installed["onedl"])} and '
            f'{", ".join(installed["openmmlab"])} share their import names; '
            f'{FIX}'
        )
    for name in names:
        lowest, too_new = VERSIONS[name]
        try:
            version = import_module(name).__version__
        except ModuleNotFoundError as error:
            if error.name != name:  # it is there, and lacks another
                raise
            raise ImportError(
                f'mmstepnet needs {name}>={lowest},<{too_new}, which is not '
                f'installed; {FIX}'
            ) from error
        if not lowest <= TorchVersion(version) < too_new:
            raise ImportError(
                f'mmstepnet needs {name}>={lowest},<{too_new}, but {version} '
                f'is installed; {FIX}'
            )
