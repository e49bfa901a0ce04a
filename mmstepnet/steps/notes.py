"""What a folder of transformers or PEFT says of the steps in it.

``from_pretrained`` leaves steps out and says that their weights can be
ignored. So the config and the model card name the steps, and the call that
reads them.
"""

import json
import re
from pathlib import Path

from mmstepnet.files import write_whole

from .stock import Blocks

READ_BY = 'mmstepnet.integrations.transformers.load_folder(model, folder)'
"""The call that puts on a model what its folder holds."""

HEADING = '## Steps of mmstepnet'
SECTION = re.compile(
    rf'\n*^{HEADING}$.*?(?=^##? |\Z)', re.DOTALL | re.MULTILINE
)
NEW_CARD = '---\nlibrary_name: transformers\n---\n'
TEXT = """

{heading}

This model was changed by mmstepnet: {changes}. `from_pretrained` alone leaves
that out, and then the model computes something else. Call also

```python
from mmstepnet.integrations.transformers import load_folder

load_folder(model, folder)
```
"""


def write_notes(folder: Path, blocks: Blocks) -> None:
    """Say in a folder what its steps are; of other libraries' do nothing.

    Args:
        folder (Path): The folder. Its config is one of transformers, or it
            has an adapter of PEFT, or nothing is written.
        blocks (Blocks): The blocks that were changed.
    """
    steps = {}
    removed = []
    for name, block in blocks.items():
        if 'steps' in block:
            steps[name] = [each['type'] for each in block['steps'].values()]
        else:
            removed.append(name)
    path = folder / 'config.json'
    config = json.loads(path.read_text('utf-8')) if path.is_file() else {}
    if 'model_type' in config:
        config['mmstepnet'] = dict(
            steps=steps, removed_blocks=removed, read_by=READ_BY
        )
        content = json.dumps(config, indent=2, sort_keys=True)
        write_whole(path, f'{content}\n')
    elif not (folder / 'adapter_config.json').is_file():
        return
    changes = [
        f'{" and ".join(dict.fromkeys(types))} in `{name}`'
        for name, types in steps.items()
    ]
    changes += [f'`{name}` taken out' for name in removed]
    section = TEXT.format(heading=HEADING, changes=', '.join(changes))
    card = folder / 'README.md'
    text = card.read_text('utf-8') if card.is_file() else NEW_CARD
    text = SECTION.sub('\n\n', text).rstrip('\n')
    write_whole(card, text + section)
