from .bucket_sampler import BucketBatchSampler
from .human_segmentation import HumanSegmentation
from .mesh_files import Mesh, load_mesh
from .multi30k import Multi30k
from .points import MNISTPoints, Moon

__all__ = [
    'BucketBatchSampler', 'HumanSegmentation', 'MNISTPoints', 'Mesh', 'Moon',
    'Multi30k', 'load_mesh'
]
