#!/usr/bin/env bash
# Makes the environment if need be and runs the checks and tests in it, on the
# stack that STACK names (see setup_env.sh). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stack.sh
bash tools/setup_env.sh
export PATH="$(realpath "$venv")/bin:$PATH"
ruff check .
# Two workers of one thread each are faster than one of two.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec python -m pytest --numprocesses 2 --dist loadfile --durations 15 "$@"
