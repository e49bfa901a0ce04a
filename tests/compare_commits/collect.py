"""What one checkout computes, written to a file.

    PYTHONPATH=CHECKOUT python tests/compare_commits/collect.py OUT.pt

It runs on the layouts before and after the redesign of November 2026, hence
asks the registries for all that it builds and names no module that moved.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

ATTENTIONS = (None, 'StepNet', 'SE', 'CBAM', 'ECA', 'SEM', 'SRM', 'FCA',
              'SGE', 'OursSharedMLP', 'OursDepthwiseConv', 'OursNoNorm',
              'OursNormFirst', 'OursMeanStd')
BACKBONES = {
    'resnet18': (dict(type='mmstepnet.StepResNet', depth=18), 64),
    'resnet50': (dict(type='mmstepnet.StepResNet', depth=50), 64),
    'resnet50_preact': (
        dict(type='mmstepnet.StepResNet', depth=50, preact=True), 64),
    'resnext50': (dict(type='mmstepnet.StepResNeXt', depth=50), 64),
    'resnet20_cifar': (dict(type='mmstepnet.StepResNetCIFAR', depth=20), 32),
}
MEASURED = {
    'resnet50_stepnet': dict(type='mmstepnet.StepResNet', depth=50),
    'resnet50_se': dict(
        type='mmstepnet.StepResNet', depth=50, attention=dict(type='SE')),
    'cifar56': dict(type='mmstepnet.StepResNetCIFAR', depth=56),
    'host_resnet50': dict(type='mmpretrain.ResNet', depth=50),
    'host_seresnet50': dict(type='mmpretrain.SEResNet', depth=50),
    'host_convnext': dict(type='mmpretrain.ConvNeXt', arch='atto'),
}
CONFIGS = ('configs/digits/resnet20_stepnet_digits.py',
           'configs/digits/resnet20_se_digits.py',
           'configs/digits/resnet20_plain_digits.py',
           'configs/digits/resnet20_srm_digits.py',
           'configs/digits/resnet20_iebn_digits.py')
TABLES = ('1', '2', '3', '4', '7', 'fig8', 'small', 'digits', 'bccd')
ITERATIONS = 20


def perturb(model: torch.nn.Module) -> torch.nn.Module:
    """Draw all weights and statistics by name, whatever order they are in."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
            noise = torch.randn(
                tensor.shape, generator=torch.Generator().manual_seed(seed))
            if name.endswith('running_var'):
                tensor.copy_(1 + 0.3 * noise.abs())
            elif tensor.dim() > 1:
                tensor.copy_(noise / tensor[0].numel()**0.5)
            else:
                tensor.copy_(float(name.endswith('weight')) + 0.3 * noise)
    return model


def step(model: torch.nn.Module, size: int) -> dict:
    """Outputs, gradients and buffers of one training step."""
    torch.manual_seed(0)
    images = torch.randn(4, 3, size, size, requires_grad=True)
    outs = model.train()(images)
    sum((out * torch.randn(out.shape)).mean() for out in outs).backward()
    found = {f'out.{i}': out.detach() for i, out in enumerate(outs)}
    found['grad.images'] = images.grad
    found |= {f'grad.{n}': p.grad for n, p in model.named_parameters()
              if p.grad is not None}
    return found | {f'buffer.{n}': b.clone()
                    for n, b in model.named_buffers()}


def backbones() -> dict:
    found = {}
    for name, (cfg, size) in BACKBONES.items():
        for attention in ATTENTIONS:
            model = perturb(MODELS.build({
                **cfg, 'attention': attention and dict(type=attention)}))
            key = f'{name}.{attention}'
            found[f'{key}.keys'] = list(model.state_dict())
            found |= {f'{key}.{k}': v for k, v in step(model, size).items()}
            print(key, file=sys.stderr)
    return found


def stiffness() -> dict:
    from mmstepnet.stiffness import TrajectoryRecorder, total_neural_stiffness
    found = {}
    for name, cfg in MEASURED.items():
        model = perturb(MODELS.build(cfg))
        model.eval()  # returns None in the hosts' ResNets
        torch.manual_seed(1)
        with torch.no_grad(), TrajectoryRecorder(model) as recorder:
            model(torch.randn(4, 3, 64, 64))
        found[f'{name}.nsi'] = recorder.nsi
        found[f'{name}.blocks'] = list(recorder.blocks)
        found[f'{name}.tns'] = total_neural_stiffness(
            recorder.nsi, recorder.stages)
    return found


def losses() -> dict:
    """Loss of each of the first iterations of some configs."""
    found = {}
    for name in CONFIGS:
        cfg = Config.fromfile(name)
        cfg.work_dir = tempfile.mkdtemp()
        cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
        cfg.pop('custom_hooks', None)
        for key in ('val_dataloader', 'val_cfg', 'val_evaluator',
                    'test_dataloader', 'test_cfg', 'test_evaluator'):
            cfg[key] = None
        runner = Runner.from_cfg(cfg)
        history = found[f'{name}.losses'] = []
        runner._init_model_weights()
        runner.optim_wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
        model = runner.model.train()
        batches = iter(runner.train_loop.dataloader)
        torch.manual_seed(0)
        for _ in range(ITERATIONS):
            log = model.train_step(next(batches), runner.optim_wrapper)
            history.append(float(log['loss']))
    return found


def tables() -> dict:
    module = ['-m', 'projects.reproduction.paper']
    if not Path('projects/reproduction').is_dir():
        module = ['tools/paper.py']
    return {
        f'table {name}': subprocess.run(
            [sys.executable, *module, 'table', name, '--markdown'],
            check=True, capture_output=True, text=True).stdout
        for name in TABLES
    }


PARTS = {'backbones': backbones, 'stiffness': stiffness, 'losses': losses,
         'tables': tables}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('out', type=Path)
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=PARTS)
    parser.add_argument('--double', action='store_true',
                        help='in float64, of backbones and stiffness alone: '
                        'what is left is no rounding')
    args = parser.parse_args()
    if args.double:
        torch.set_default_dtype(torch.float64)
        args.parts = ['backbones', 'stiffness']
    torch.set_num_threads(1)
    init_default_scope('mmpretrain')
    found = {}
    for part in args.parts:
        found[part] = PARTS[part]()
        torch.save(found, args.out)


if __name__ == '__main__':
    main()
