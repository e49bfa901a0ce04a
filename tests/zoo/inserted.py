"""Steps put into networks of transformers and timm, and what they do there.

    python -m tests.zoo.inserted transformers
    python -m tests.zoo.inserted timm --rows inserted.tsv

Of transformers small random configs, of timm the smallest model of each
module.
Prints a table: blocks, steps, gates that get a gradient, the largest
difference to the network without steps; with all gates moved, the largest
difference after the state dict was loaded into another copy, and of the
compiled network; or why it is refused. With ``--rows`` each row is written as
it comes, and a second call goes on where the first ended.
"""

import argparse
import warnings
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from mmstepnet import ResidualStep, insert_steps
from tests.test_steps.insertion import perturb

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
FOUR = dict(depths=[2, 2, 2, 2],
            out_features=[f'stage{i}' for i in (1, 2, 3, 4)])

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
    'Dinov2': (dict(hidden_size=32, num_hidden_layers=3,
                    num_attention_heads=4, image_size=32, patch_size=8),
               PICTURES),
    'Beit': (VISION, PICTURES),
    'Swin': (SWIN, PICTURES),
    'Segformer': (STAGES, LARGER),
    'ConvNextV2': (STAGES, LARGER),
    'DPT': (dict(VISION, backbone_out_indices=[0, 1, 1, 2],
                 neck_hidden_sizes=[8] * 4, fusion_hidden_size=8), PICTURES),
    'Detr': (dict(use_timm_backbone=False, use_pretrained_backbone=False,
                  backbone_config=dict(
                      FOUR, model_type='resnet', layer_type='basic',
                      embedding_size=8, hidden_sizes=[8, 16, 32, 64]),
                  d_model=32, encoder_layers=3, decoder_layers=3,
                  encoder_attention_heads=4, decoder_attention_heads=4,
                  encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=5),
             LARGER),
    'Mask2Former': (dict(
        backbone_config=dict(SWIN | FOUR, model_type='swin', image_size=64,
                             num_heads=[2, 2, 4, 4]),
        feature_size=32, mask_feature_size=32, hidden_dim=32,
        encoder_feedforward_dim=64, dim_feedforward=64, encoder_layers=2,
        decoder_layers=3, num_attention_heads=4, num_queries=5), LARGER),
    'WhisperEncoder': (
        dict(d_model=32, encoder_layers=3, encoder_attention_heads=4,
             decoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=8,
             max_source_positions=50),
        dict(input_features=torch.randn(2, 8, 100))),
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
    """A small model of transformers with random weights, to be evaluated."""
    hf = import_module('transformers')
    whole = name.removesuffix('Encoder')
    config = getattr(hf, f'{whole}Config')(**settings)
    model = getattr(hf, f'{whole}Model')(config).eval()
    return model if whole == name else model.get_encoder()


def smallest_of_timm() -> list[str]:
    """Of each module the model with the fewest parameters, no toy."""
    from . import found_steps
    found = {}
    for name in found_steps.names('timm', False):
        if name.startswith('test_'):
            continue
        with torch.device('meta'):
            model, _ = found_steps.build('timm', name)
        size = sum(p.numel() for p in model.parameters()), name
        module = found_steps.module('timm', name)
        found[module] = min(found.get(module, size), size)
    return sorted(name for _, name in found.values())


def given(library: str, name: str) -> tuple[torch.nn.Module, dict | tuple]:
    """A model and its inputs, the same ones each time."""
    from . import found_steps
    torch.manual_seed(0)
    model, inputs = found_steps.build(library, name)
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() and p.abs().max() < 1e-3:
                # Scales of branches and heads, which would hide what a step
                # does.
                p.normal_(std=0.1)
    return model.eval(), inputs


def first(out: object) -> Tensor:
    """The first tensor that a model returns."""
    return out if isinstance(out, Tensor) else first(
        next(iter(out.values() if isinstance(out, dict) else out)))


def call(model: torch.nn.Module, inputs: dict | tuple) -> Tensor:
    """The first tensor that a model returns."""
    return first(model(**inputs) if isinstance(inputs, dict)
                 else model(*inputs))


def apart(a: Tensor, b: Tensor) -> str:
    """Largest difference over the largest value."""
    return f'{((a - b).abs().max() / b.abs().max()).item():.1e}'


def row(library: str, name: str) -> list:
    """What stands in the table."""
    model, inputs = given(library, name)
    with torch.no_grad():
        before = call(model, inputs)
    try:
        blocks = insert_steps(model, example=inputs)
    except ValueError as error:
        return [name, 0, 0, 0, '', '', '',
                ' '.join(str(error).split())[:120]]
    out = call(model, inputs)
    out.square().sum().backward()
    steps = [m for m in model.modules() if isinstance(m, ResidualStep)]
    reached = sum(any(p.grad is not None for p in s.attention.parameters())
                  for s in steps)
    for step in steps:
        perturb(step.attention)
    other, _ = given(library, name)
    insert_steps(other, example=inputs)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        moved = call(model, inputs)
        loaded = apart(call(other, inputs), moved)
        compiled = apart(call(torch.compile(model, backend='eager'), inputs),
                         moved)
    torch.compiler.reset()
    return [name, len(blocks), len(steps), reached, apart(out, before),
            loaded, compiled, '']


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('library', choices=('timm', 'transformers'))
    parser.add_argument('--rows', type=Path)
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    done = {}
    if args.rows is not None and args.rows.exists():
        done = {line.split('\t')[0]: line.split('\t')
                for line in args.rows.read_text('utf-8').splitlines()}
    print('| model | blocks | steps | with gradient | difference | loaded '
          '| compiled | refused |')
    print('|---' * 8 + '|')
    for name in (smallest_of_timm() if args.library == 'timm' else MODELS):
        if name not in done:
            try:
                done[name] = list(map(str, row(args.library, name)))
            except Exception as error:  # whatever a network raises there
                done[name] = [name, *[''] * 6, f'{type(error).__name__}: '
                              f'{" ".join(str(error).split())[:120]}']
            if args.rows is not None:
                with args.rows.open('a', encoding='utf-8') as file:
                    print('\t'.join(done[name]), file=file)
        print('|', ' | '.join(done[name]), '|', flush=True)


if __name__ == '__main__':
    main()
