#!/usr/bin/env bash
# Checks and tests in the environment of the stack that STACK names, which is
# made if need be (see setup_env.sh). Without arguments it is for newcomers:
# the style, and the tests of the library's rooms. --all is for CI: all tests
# of the stack. Other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stack.sh
part=all tests=()
if [ $# -eq 0 ] && [[ $stack =~ ^(onedl|openmmlab)$ ]]; then
    part=quick
    tests=(tests/test_{attentions,datasets,engine,jobs,models}
        tests/test_{propagation,steps,stiffness,tracing}
        tests/test_{compatibility,files,imports}.py)
elif [ $# -eq 0 ] || [ "$1" = --all ]; then
    shift $(($# > 0))
    if [ "$stack" = core ]; then
        tests=(tests/test_{attentions,steps,stiffness,propagation,tracing}
            tests/test_imports.py)
    elif [ "$stack" = examples ]; then
        # What needs the libraries that this stack alone has.
        mapfile -t tests < <(grep -lE \
            'accelerate|lightning|peft|timm|torch_geometric|transformers' \
            tests/test_{attentions,steps,stiffness,tracing,trials}/test_*.py)
        tests+=(tests/test_cli tests/test_integrations
            tests/test_examples.py::test_{tns_in_lightning,steps_in_hf_trainer})
    fi
fi
bash tools/setup_env.sh $part
export PATH="$(realpath "$venv")/bin:$PATH"
ruff check .
ruff format --check .
# Types of the core, where all libraries that it names are installed.
[ "$stack" != examples ] || pyright --project pyproject.toml
# Two workers of one thread each are faster than one of two.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec python -m pytest --numprocesses 2 --dist loadfile --durations 15 \
    ${tests[@]+"${tests[@]}"} "$@"
