#!/usr/bin/env bash
# dist_test.sh CONFIG CHECKPOINT GPUS [ARGUMENTS OF test.py...]
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG CHECKPOINT GPUS [ARGUMENTS OF test.py...]" >&2
    exit 2
fi
here=$(dirname "$0")
exec bash "$here/dist_run.sh" "$here/test.py" "$3" "$1" "$2" "${@:4}"
