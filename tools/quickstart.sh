#!/usr/bin/env bash
# From nothing to trained StepNets on real handwritten digits: environment,
# three classifiers, a detector, pictures and the stiffness report, in 10 to 20
# minutes. The first picture comes right after the environment; a second call
# goes on where one ended.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stack.sh
if [[ $stack =~ ^(core|examples)$ ]]; then
    echo 'the quickstart needs OpenMMLab: STACK=onedl or STACK=openmmlab' >&2
    exit 2
fi
python=$(find_python)
exec "$python" tools/quickstart.py "$venv"
