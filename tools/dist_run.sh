#!/usr/bin/env bash
# dist_run.sh SCRIPT GPUS ARGS...: start SCRIPT on GPUS processes a node.
# Without a GPU the tools take gloo. NNODES, NODE_RANK, MASTER_ADDR and PORT
# span several nodes.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 SCRIPT GPUS [ARGUMENTS...]" >&2
    exit 2
fi
script=$1 processes=$2
shift 2
if ! [[ $processes =~ ^[1-9][0-9]*$ ]]; then
    echo "the number of GPUs must be a positive integer, got '$processes'" >&2
    exit 2
fi
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$processes" \
    "$script" "$@" --launcher pytorch
