"""Steps put into architectures of transformers, of small random configs.

    python -m tests.zoo.inserted_transformers

Prints a table: blocks, steps, gates that get a gradient, and the largest
difference to the network without steps; or why it is refused.
"""

import warnings

import torch
import transformers as hf
from torch import Tensor

from mmstepnet import ResidualStep, insert_steps

SMALL = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
             intermediate_size=64)
TEXT = dict(SMALL, vocab_size=100, pad_token_id=0, bos_token_id=1,
            eos_token_id=2)
VISION = dict(SMALL, image_size=32, patch_size=8)
GPT = dict(vocab_size=100, n_embd=32, n_layer=3, n_head=4, bos_token_id=1,
           eos_token_id=2)
WORDS = dict(input_ids=torch.arange(24).view(2, 12))
PICTURES = dict(pixel_values=torch.rand(2, 3, 32, 32))
LARGER = dict(pixel_values=torch.rand(2, 3, 64, 64))
STAGES = dict(depths=[2, 2, 2, 2], hidden_sizes=[8, 16, 32, 64])
SWIN = dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
            num_heads=[2, 4], window_size=4)

MODELS = {
    'Bert': (TEXT, WORDS),
    'Roberta': (TEXT, WORDS),
    'DebertaV2': (TEXT, WORDS),
    'ModernBert': (dict(TEXT, cls_token_id=1, sep_token_id=2), WORDS),
    'Electra': (TEXT, WORDS),
    'XLNet': (dict(vocab_size=100, d_model=32, n_layer=3, n_head=4,
                   d_inner=64), WORDS),
    'Albert': (dict(TEXT, embedding_size=32), WORDS),
    'T5Encoder': (dict(vocab_size=100, d_model=32, d_kv=8, d_ff=64,
                       num_layers=3, num_heads=4), WORDS),
    'CLIPVision': (VISION, PICTURES),
    'CLIPText': (TEXT, WORDS),
    'SiglipVision': (VISION, PICTURES),
    'ViT': (VISION, PICTURES),
    'Dinov2': (dict(VISION, intermediate_size=None), PICTURES),
    'Beit': (VISION, PICTURES),
    'Swin': (SWIN, PICTURES),
    'Segformer': (STAGES, LARGER),
    'ConvNextV2': (STAGES, LARGER),
    'Wav2Vec2': (dict(TEXT, conv_dim=[16] * 7),
                 dict(input_values=torch.randn(2, 4000))),
    'VideoMAE': (dict(VISION, num_frames=4, tubelet_size=2),
                 dict(pixel_values=torch.rand(2, 4, 3, 32, 32))),
    'Llama': (TEXT, WORDS),
    'Qwen3': (dict(TEXT, num_key_value_heads=2, head_dim=8), WORDS),
    'GPT2': (GPT, WORDS),
    'GPTJ': (dict(GPT, rotary_dim=8), WORDS),
    'Mistral': (dict(TEXT, num_key_value_heads=2), WORDS),
    'Mamba': (dict(vocab_size=100, hidden_size=32, num_hidden_layers=3,
                   state_size=4), WORDS),
}


def build(name: str, settings: dict) -> torch.nn.Module:
    """A small model with random weights, in evaluation mode."""
    config = getattr(hf, f'{name.removesuffix("Encoder")}Config')
    settings = {k: v for k, v in settings.items() if v is not None}
    return getattr(hf, f'{name}Model')(config(**settings)).eval()


def first(out: object) -> Tensor:
    """The first tensor that a model returns."""
    return out if isinstance(out, Tensor) else first(
        next(iter(out.values() if isinstance(out, dict) else out)))


def row(name: str) -> list:
    """What stands in the table."""
    torch.manual_seed(0)
    settings, inputs = MODELS[name]
    model = build(name, settings)
    with torch.no_grad():
        before = first(model(**inputs))
    try:
        blocks = insert_steps(model, example=inputs)
    except ValueError as error:
        return [name, 0, 0, 0, '', ' '.join(str(error).split())[:120]]
    out = first(model(**inputs))
    out.square().sum().backward()
    steps = [m for m in model.modules() if isinstance(m, ResidualStep)]
    reached = sum(any(p.grad is not None for p in s.attention.parameters())
                  for s in steps)
    difference = (out - before).abs().max() / before.abs().max()
    return [name, len(blocks), len(steps), reached,
            f'{difference.item():.1e}', '']


def main() -> None:
    """Print the table."""
    warnings.simplefilter('ignore')
    print('| model | blocks | steps | with gradient | difference | refused |')
    print('|---|---|---|---|---|---|')
    for name in MODELS:
        print('|', ' | '.join(map(str, row(name))), '|', flush=True)


if __name__ == '__main__':
    main()
