"""What is found in the networks of timm, torchvision and transformers.

    python -m tests.zoo.found_steps found.tsv --library timm
    python -m tests.zoo.found_steps found.tsv --page docs/families.md

On the meta device, so that nothing is computed; detectors, which compare
values, and transformers' small networks run on the CPU. One line a model:
library, module, model, steps that are recorded, stages, how many sums are left
out or are no steps, by reason, and what ``insert_steps`` does. Models that the
file names already are passed over, so that an interrupted run goes on.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import timm
import torch
import torchvision

from mmstepnet import ResidualStep, insert_steps
from mmstepnet.steps.finding import FIRST, Arrangement, Finder
from mmstepnet.steps.finding.additions import NO_STATE, PROJECTS
from mmstepnet.steps.tail.dispatch import read_tail

LIBRARIES = 'timm', 'torchvision', 'transformers'

SIZES = {'s3d': 224, 'swin3d': 224, 'mvit': 224}
"""Image size of torchvision's video networks by their names; others: 112."""

PAGE = """# Families

Nearly all networks of timm, torchvision and transformers whose blocks add to
their state have steps that are found. Look yours up in the tables.

| word | means |
|---|---|
| recorded | NSI is measured there |
| left out | no NSI, for the reason beside it; see below |
| fused | `insert_steps` puts StepNet in, and the fused step knows all its parts. On a CPU it too takes the reference path over maps of fewer than 65,536 values |
| inserted | `insert_steps` puts StepNet in, on the reference path |
| refused | `insert_steps` gives an error with the reason |

```bash
{commands}
```

{reasons}

A family is a module. The tables name its first network in alphabetical order.
The last two columns count all of its networks that were run. timm's and
torchvision's networks ran on the meta device. Transformers' small
configurations with random weights ran on the CPU. Versions: {versions}.

{summary}

**Not run**: {others}.
"""  # noqa: E501

SUMMARY = ('library', 'models', 'families', 'run', 'with steps', 'without',
           'do not run there', 'fused in', 'inserted in', 'refused')
REASONS = {
    'unrelated': 'neither operand was computed from the other',
    'projected': PROJECTS,
    'no state': NO_STATE,
    'no contraction': 'no contraction lies between the operands',
    'in a branch': 'part of the branch of another step',
    'position': 'an operand of it goes on as a later state',
}
"""Short words for reasons why a sum is left out or is no step."""
COLUMNS = ('module', 'first model', 'recorded', 'stages',
           'left out, or no steps', '`insert_steps`', 'models run',
           'without steps')


def names(library: str, families: bool) -> list[str]:
    """Names of a library's models, of each module the first one if wanted."""
    if library == 'transformers':
        from .inserted import MODELS
        return list(MODELS)
    found = (timm if library == 'timm' else torchvision.models).list_models()
    if families:
        first = {module(library, name): name for name in reversed(found)}
        found = sorted(first.values())
    return found


def module(library: str, name: str) -> str:
    """Name of the Python module that a model is made in."""
    if library == 'transformers':
        import transformers
        whole = name.removesuffix('Encoder')
        made = getattr(transformers, f'{whole}Model').__module__
        return made.split('.')[-2]
    builder = (torchvision.models.get_model_builder
               if library == 'torchvision' else timm.model_entrypoint)(name)
    return builder.__module__.partition('.models.')[2]


def build(library: str, name: str) -> tuple[torch.nn.Module, tuple | dict]:
    """A model and its inputs."""
    if library == 'transformers':
        from .inserted import MODELS, build
        return build(name, MODELS[name][0]), MODELS[name][1]
    if library == 'timm':
        model = timm.create_model(name)
        size = model.pretrained_cfg.get('input_size', (3, 224, 224))
        return model, (torch.rand(2, *size), )
    kind, options = module(library, name), {}
    if kind.startswith(('detection', 'segmentation')):
        options = dict(weights_backbone=None)
    if kind.startswith('detection') and not name.startswith('ssd'):
        options.update(min_size=224, max_size=224)  # 800 takes minutes
    model = torchvision.models.get_model(name, **options)
    if kind.startswith('detection'):
        return model, (list(torch.rand(2, 3, 224, 224)), )
    if kind.startswith('optical_flow'):
        return model, (torch.rand(2, 3, 128, 128), ) * 2
    if kind.startswith('video'):
        size = next((n for k, n in SIZES.items() if name.startswith(k)), 112)
        return model, (torch.rand(2, 3, 16, size, size), )
    size = 299 if name == 'inception_v3' else 224
    return model, (torch.rand(2, 3, size, size), )


def run(model: torch.nn.Module, inputs: tuple | dict) -> None:
    """One pass."""
    with torch.no_grad():
        if isinstance(inputs, dict):
            model(**inputs)
        else:
            model(*inputs)


def inserted(model: torch.nn.Module, inputs: tuple | dict) -> str:
    """What ``insert_steps`` does."""
    try:
        insert_steps(model, example=inputs)
    except ValueError as error:
        return f'refused: {said(error)}'
    fused = []

    def look(step: ResidualStep, args: tuple, kwargs: dict) -> None:
        norm = args[2] if len(args) > 2 else kwargs.get('norm')
        whole = kwargs.get('drop_path') is kwargs.get('keep') is None
        fused.append(whole and read_tail(step, *args[:2], norm) is not None)
    for step in model.modules():
        if isinstance(step, ResidualStep):
            step.register_forward_pre_hook(look, with_kwargs=True)
    run(model, inputs)
    counts = {'fused': sum(fused), 'inserted': len(fused) - sum(fused)}
    return ', '.join(f'{n} {what}' for what, n in counts.items() if n)


def line(library: str, name: str) -> str:
    """What is found in a model."""
    insertion = ''
    try:
        kind = module(library, name)
        real = library == 'transformers' or kind.startswith('detection')
        # torchvision's RegNet computes its widths with tensors.
        with torch.device('cpu' if real or kind == 'regnet' else 'meta'):
            model, inputs = build(library, name)
        if kind == 'regnet':
            model, inputs = model.to('meta'), (inputs[0].to('meta'), )
        with torch.device('cpu' if real else 'meta'):
            finder = Finder(model.eval())
            handles = finder.attach()
            run(model, inputs)
        steps = Arrangement(finder).steps
        for handle in handles:
            handle.remove()
        if any(step.left_out in (None, FIRST) for step in steps):
            insertion = inserted(model, inputs)
    except Exception as error:  # whatever a network raises there
        steps, reasons = [], {f'{type(error).__name__}: {said(error)}': 1}
    else:
        reasons = Counter(step.left_out for step in steps if step.left_out)
        for (_, reason), count in finder.missed.items():
            reasons[reason] += count
    recorded = [step for step in steps if not step.left_out]
    return '\t'.join(map(str, (
        library, module(library, name), name, len(recorded),
        len({s.stage for s in recorded}),
        '; '.join(f'{n} {reason}' for reason, n in reasons.items()),
        insertion)))


def said(error: Exception) -> str:
    """An error in one line."""
    return ' '.join(str(error).split())[:160]


def counts(library: str, lines: list[list[str]]) -> list:
    """A row of the page's summary."""
    failed = [c for c in lines if 'Error: ' in c[5]]
    steps = sum(c[3] != '0' for c in lines)
    return [library, len(names(library, False)), len(names(library, True)),
            len(lines), steps,
            len(lines) - steps - len(failed), len(failed),
            *(sum(word in c[6] for c in lines)
              for word in (' fused', ' inserted', 'refused'))]


def row(cells: Sequence) -> str:
    """A row of a table in Markdown."""
    return '| ' + ' | '.join(
        str(cell).replace('|', '\\|') for cell in cells) + ' |'


def table(columns: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table in Markdown."""
    return '\n'.join([row(columns), '|---' * len(columns) + '|',
                      *map(row, rows)])


def page(lines: list[list[str]]) -> str:
    """The page of families, of the lines of the file."""
    of = {library: sorted(c for c in lines if c[0] == library)
          for library in LIBRARIES}
    summary = [counts(library, of[library]) for library in LIBRARIES]
    command = 'python -m tests.zoo.found_steps found.tsv'
    parts = [PAGE.format(
        commands='\n'.join([
            *(f'{command} --library {name}' for name in LIBRARIES),
            f'{command} --page docs/families.md']),
        versions=', '.join(
            f'{name} {version(name)}' for name in ('torch', *LIBRARIES)),
        summary=table(SUMMARY, summary),
        reasons=table(('left out', 'what `find_steps` says'),
                      REASONS.items()),
        others=', '.join(
            f'{s[1] - s[3]:,} models of {s[0]}'
            for s in summary if s[1] > s[3]) or 'none')]
    for library in LIBRARIES:
        rows = [family(list(lines)) for _, lines in groupby(
            of[library], key=lambda c: c[1])]
        parts.append(f'## {library}\n\n{table(COLUMNS, rows)}\n')
    return '\n'.join(parts)


def family(lines: list[list[str]]) -> list:
    """A row of the table of families: its first model, and how many more."""
    first = lines[0]
    without = [c[2] for c in lines if c[3] == '0']
    others = ', '.join(f'`{name}`' for name in without)
    reasons = first[5]
    for word, reason in REASONS.items():
        reasons = reasons.replace(reason, word)
    return [f'`{first[1]}`', f'`{first[2]}`', *first[3:5], reasons,
            first[6] or 'no steps', len(lines),
            'all' if len(without) == len(lines) else others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('out', type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--library', choices=LIBRARIES)
    what.add_argument('--page', type=Path, help='write the page of families')
    parser.add_argument('--families', action='store_true',
                        help='of each module the first model alone')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    args.out.touch()

    def lines() -> list[list[str]]:
        return [text.split('\t') for text in args.out.read_text(
            encoding='utf-8').splitlines()]
    if args.page:
        args.page.write_text(page(lines()), 'utf-8')
        return
    known = {c[2] for c in lines() if c[0] == args.library}
    for name in names(args.library, args.families):
        if name not in known:
            with args.out.open('a', encoding='utf-8') as file:
                file.write(line(args.library, name) + '\n')
    print(row(counts(args.library, [
        c for c in lines() if c[0] == args.library])))


if __name__ == '__main__':
    main()
