#!/usr/bin/env bash
# dist_train.sh CONFIG GPUS [ARGUMENTS OF train.py...]
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG GPUS [ARGUMENTS OF train.py...]" >&2
    exit 2
fi
here=$(dirname "$0")
exec bash "$here/dist_run.sh" "$here/train.py" "$2" "$1" "${@:3}"
