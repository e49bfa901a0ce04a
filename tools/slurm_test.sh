#!/usr/bin/env bash
# slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [ARGUMENTS OF test.py...]
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG CHECKPOINT [ARGUMENTS OF" \
        "test.py...]" >&2
    exit 2
fi
here=$(dirname "$0")
exec bash "$here/slurm_run.sh" "$here/test.py" "$@"
