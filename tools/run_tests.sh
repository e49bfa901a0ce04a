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
        tests/test_{propagation,steps,stiffness}
        tests/test_{compatibility,configs,files,imports}.py)
elif [ $# -eq 0 ] || [ "$1" = --all ]; then
    shift $(($# > 0))
    if [ "$stack" = core ]; then
        tests=(tests/test_{attentions,steps,stiffness,propagation}
            tests/test_imports.py)
    elif [ "$stack" = examples ]; then
        tests=(tests/test_examples.py::test_{tns_in_lightning,steps_in_hf_trainer}
            tests/test_cli tests/test_integrations
            tests/test_steps/test_{files_transformers,insert_families,lora}.py
            tests/test_steps/test_{distributed,modes}.py
            tests/test_attentions/test_{record_loaders,reset}.py
            tests/test_stiffness/test_surroundings.py
            tests/test_steps/test_{made_up,set_forwards}.py
            tests/test_steps/test_removal.py::test_a_cache_counts_layers
            tests/test_steps/test_tail_respects.py::test_accelerate)
    fi
fi
bash tools/setup_env.sh $part
export PATH="$(realpath "$venv")/bin:$PATH"
ruff check .
# Types of the core, where all libraries that it names are installed.
[ "$stack" != examples ] || pyright --project pyproject.toml
# Two workers of one thread each are faster than one of two.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec python -m pytest --numprocesses 2 --dist loadfile --durations 15 \
    ${tests[@]+"${tests[@]}"} "$@"
