#!/usr/bin/env bash
# slurm_train.sh PARTITION JOB_NAME CONFIG [ARGUMENTS OF train.py...]
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG [ARGUMENTS OF train.py...]" >&2
    exit 2
fi
here=$(dirname "$0")
exec bash "$here/slurm_run.sh" "$here/train.py" "$@"
