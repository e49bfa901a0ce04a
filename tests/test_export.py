"""ONNX files of networks with steps, run by onnxruntime."""

from importlib.util import find_spec

import pytest
import torch

from mmstepnet import MetricAttention, export, insert_steps, remove_blocks
from mmstepnet.export import export_onnx
from tests.families import timm_families, torchvision_families
from tests.utils import outputs, run_onnx, with_moved_steps

for name in ('onnx', 'onnxruntime', 'onnxscript'):
    if find_spec(name) is None:
        pytest.skip(f'needs {name}', allow_module_level=True)

FAMILIES = {
    'torchvision': (torchvision_families, 'ResNet, bottleneck', {}),
    'timm': (timm_families, 'ConvNeXt', {}),
    'tokens': (torchvision_families, 'ViT', dict(dynamic_size=False)),
}


def network(key):
    """One with steps, or a pruned one, which need not have any."""
    models = pytest.importorskip(
        'timm' if key == 'timm' else 'torchvision.models'
    )
    if key == 'pruned':
        model = models.resnet18(num_classes=3).eval()
        assert remove_blocks(
            model, ['layer1.1'], example=torch.rand(2, 3, 64, 64)
        )
        return model, {}
    families, name, options = FAMILIES[key]
    family = families()[name]
    model = with_moved_steps(family.build(), **dict(family.options))
    return model.eval(), options


@pytest.mark.parametrize(
    'key',
    [
        'torchvision',
        'pruned',
        *(
            pytest.param(key, marks=pytest.mark.slow)
            for key in ('timm', 'tokens')
        ),
    ],
)
def test_file_computes_what_the_model_does(key, tmp_path):
    """Of sizes that it was not written with, too."""
    import onnx

    model, options = network(key)
    size = (32, 32) if key == 'tokens' else (48, 40)
    path = tmp_path / 'new' / 'model.onnx'
    model.train()
    assert 0 < export_onnx(model, path, size, **options) < 1e-4
    assert model.training
    model.eval()
    onnx.checker.check_model(str(path))
    images = torch.rand(5, 3, *size) if options else torch.rand(1, 3, 80, 64)
    (found,) = run_onnx(path, images=images)
    with torch.no_grad():
        (wanted,) = outputs(model, images)
    torch.testing.assert_close(
        found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max())
    )
    # Adaptors and norms were folded.
    types = {node.op_type for node in onnx.load(path).graph.node}
    assert 'BatchNormalization' not in types
    assert ('Sigmoid' in types) == (key != 'pruned')


def test_one_image_size_is_named(tmp_path):
    model, _ = network('tokens')
    with pytest.raises(RuntimeError, match='height, width.*dynamic_size'):
        export_onnx(model, tmp_path / 'model.onnx', (32, 32))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('has_steps', [False, True])
@pytest.mark.parametrize('dynamic_size', [False, True])
def test_a_size_that_the_model_does_not_take(
    has_steps, dynamic_size, tmp_path
):
    """Before anything else is tried; fold would speak of its example."""
    models = pytest.importorskip('torchvision.models')
    model = models.VisionTransformer(32, 16, 2, 2, 8, 16).eval()
    if has_steps:
        insert_steps(model, 'LayerScale', example=torch.rand(1, 3, 32, 32))
    with pytest.raises(
        RuntimeError,
        match=r'does not run on images of 3 x 224 x 224 \(.*Wrong image '
        r'height.*\); give size= and channels= of images that it takes$',
    ):
        export_onnx(model, tmp_path / 'model.onnx', dynamic_size=dynamic_size)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'dtype', [torch.float16, torch.bfloat16, torch.float64]
)
@pytest.mark.parametrize(
    'options',
    [
        pytest.param({}, id='any size'),
        pytest.param(dict(dynamic_size=False), id='one size'),
    ],
)
def test_another_dtype_is_named(dtype, options, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).to(dtype)
    with pytest.raises(
        RuntimeError, match=(f'its weights are in {dtype} .* call model.float')
    ):
        export_onnx(model, tmp_path / 'model.onnx', (8, 8), **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'factors, by',
    [
        pytest.param((1.01, 1.01), '0.0', id='other values'),
        pytest.param((1, float('nan')), 'nan', id='NaN at another size'),
    ],
)
def test_another_result_is_refused(factors, by, tmp_path, monkeypatch):
    """Also a NaN in the images of another size alone."""
    model, _ = network('torchvision')
    run = export._run
    monkeypatch.setattr(
        export,
        '_run',
        lambda *args: [
            [out * factor for out in outs]
            for factor, outs in zip(factors, run(*args))
        ],
    )
    with pytest.raises(RuntimeError, match=f'differs from PyTorch by {by}'):
        export_onnx(model, tmp_path / 'model.onnx', (32, 32))
    assert not list(tmp_path.iterdir())


def test_causal_attention_over_padded_tokens(tmp_path):
    """The check of the mask stands in the file, too."""
    model = MetricAttention(16, 2).eval()
    x, keep = torch.randn(2, 20, 16), torch.ones(2, 1, 20, dtype=torch.bool)
    keep[:, :, 12:] = False
    path, options = tmp_path / 'model.onnx', dict(mask=keep, is_causal=True)
    torch.onnx.export(
        model,
        (x,),
        str(path),
        kwargs=options,
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    (found,) = run_onnx(path, x=x, mask=keep)
    torch.testing.assert_close(
        found, model(x, **options), rtol=1e-4, atol=1e-5
    )
