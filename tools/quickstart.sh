#!/usr/bin/env bash
# From nothing to trained StepNets on real handwritten digits: environment,
# three classifiers, a detector, pictures and the stiffness report. A second
# call reuses what is there.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
. tools/stack.sh
bash tools/setup_env.sh
export PATH="$(realpath "$venv")/bin:$PATH"
out=work_dirs/quickstart
mkdir -p "$out"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
# Runs a command, keeps its output in a file and shows its progress lines.
logged() {
    local log=$1
    shift
    if ! "$@" 2>&1 | tee "$log" | grep --line-buffered -aE \
        'Epoch\((train|val|test)\)|AttentionBN' | stdbuf -oL cut -c 1-150; then
        if [ "${PIPESTATUS[0]}" -ne 0 ]; then
            tail -n 20 "$log" >&2
            echo "failed: $*; its whole output is in $log" >&2
            exit 1
        fi
    fi
}
# train_and_test FOLDER NAME: until its metrics are there.
train_and_test() {
    local config=configs/$1/$2.py work=$out/$2
    [ -f "$work/metrics.json" ] && return
    mkdir -p "$work"
    logged "$work/train.log" python tools/train.py "$config" \
        --work-dir "$work" --resume
    logged "$work/test.log" python tools/test.py "$config" \
        "$(cat "$work/last_checkpoint")" --work-dir "$work/test" \
        --out "$work/metrics.json"
}

for attention in stepnet se plain; do
    say "ResNet-20, $attention: classification of digits"
    train_and_test digits "resnet20_${attention}_digits"
done

say 'Faster R-CNN R18, StepNet: detection of digits'
python tools/dataset_converters/compose_digits.py --out data/digits_detection
train_and_test digits faster_rcnn_r18_stepnet_digits

say 'pictures'
python tools/quickstart_pictures.py "$out"

say 'stiffness'
for attention in stepnet se plain; do
    name=resnet20_${attention}_digits
    [ -n "$(find "$out/$name" -name 'stiffness_*.npz')" ] || \
        python tools/analysis_tools/stiffness.py "configs/digits/$name.py" \
            "$(cat "$out/$name/last_checkpoint")" --out "$out/$name"
done
python tools/analysis_tools/stiffness_report.py "$out"/resnet20_*_digits \
    --out "$out/stiffness_report"

say "done in $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s"
