"""Steps out of what ``save_pretrained`` wrote, whose names it changes."""

import pytest
import torch

import mmstepnet
from mmstepnet.steps import ResidualStep
from tests.test_steps.cases import randomise

transformers = pytest.importorskip('transformers', reason='transformers')
if int(transformers.__version__.split('.')[0]) < 5:
    pytest.skip('needs transformers 5', allow_module_level=True)

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
             image_size=32, patch_size=8)
STAGES = dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])


def detr():
    backbone = transformers.ResNetConfig(
        embedding_size=8, layer_type='basic', out_features=['stage4'],
        **STAGES)
    return transformers.DetrForObjectDetection(transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False,
        backbone_config=backbone, d_model=32, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        num_queries=4))


MODELS = {
    'ViT': lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(intermediate_size=64, **SMALL)),
    'DINOv2': lambda: transformers.Dinov2Model(
        transformers.Dinov2Config(mlp_ratio=2, **SMALL)),
    'ConvNeXt': lambda: transformers.ConvNextModel(
        transformers.ConvNextConfig(layer_scale_init_value=1.0, **STAGES)),
    'DETR': detr,
}


@pytest.mark.parametrize('kind', MODELS)
def test_folder_of_save_pretrained(kind, tmp_path):
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    images = dict(pixel_values=torch.rand(
        2, 3, *((64, 64) if kind == 'DETR' else (32, 32))))
    names = mmstepnet.insert_steps(
        model, example=images,
        **(dict(blocks='model.backbone') if kind == 'DETR' else {}))
    for step in model.modules():
        if isinstance(step, ResidualStep):
            randomise(step)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    wanted = model(**images)[0]
    assert not torch.allclose(again(**images)[0], wanted, rtol=1e-2)
    assert mmstepnet.load_steps(again, tmp_path, example=images) == names
    assert torch.equal(again(**images)[0], wanted)
