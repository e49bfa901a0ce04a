#!/usr/bin/env bash
# slurm_run.sh SCRIPT PARTITION JOB_NAME ARGS...: start SCRIPT under srun.
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS size the job.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 SCRIPT PARTITION JOB_NAME [ARGUMENTS...]" >&2
    exit 2
fi
script=$1 partition=$2 job_name=$3
shift 3
gpus=${GPUS:-8}
for number in "$gpus" "${GPUS_PER_NODE:-1}" "${CPUS_PER_TASK:-1}"; do
    if ! [[ $number =~ ^[1-9][0-9]*$ ]]; then
        echo "GPUS, GPUS_PER_NODE and CPUS_PER_TASK must be positive" \
            "integers, got '$number'" >&2
        exit 2
    fi
done
# SRUN_ARGS holds several words.
# shellcheck disable=SC2086
exec srun --partition="$partition" --job-name="$job_name" \
    --ntasks="$gpus" \
    --ntasks-per-node="${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}" \
    --gres="gpu:${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$script" "$@" --launcher slurm
