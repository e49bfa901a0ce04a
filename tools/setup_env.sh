#!/usr/bin/env bash
# Makes .venv with the default stack (requirements/onedl.txt) and this package.
# A second call finds everything there and returns at once. PYTHON names the
# interpreter, VENV the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
venv=${VENV:-.venv}
stamp="$venv/mmstepnet.stamp"

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
pinned() { grep "^$1==" requirements/onedl.txt; }
has_ops() { "$venv/bin/python" -c 'import mmcv.ops' 2>/dev/null; }

wanted=$(cat requirements/*.txt setup.py "$0" | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
if ! command -v "$python" >/dev/null; then
    echo "no $python here: install Python 3.11, or name it with PYTHON=..." >&2
    exit 1
fi

say "environment $venv"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip install "$(pinned torch)" "$(pinned torchvision)" \
    "$(grep '^setuptools' requirements/onedl.txt)" wheel ninja psutil

say 'OpenMMLab packages'
# In one call, so that nothing replaces the pinned torch and setuptools.
grep -v onedl-mmcv requirements/onedl.txt > "$venv/hosts.txt"
pip install -r "$venv/hosts.txt" -r requirements/runtime.txt \
    -r requirements/tests.txt

if ! has_ops; then
    say 'mmcv with its ops'
    # mim knows where prebuilt wheels for some torch versions lie.
    PATH="$venv/bin:$PATH" timeout 60 "$venv/bin/mim" install --quiet \
        --no-deps --only-binary=:all: "$(pinned onedl-mmcv)" \
        >/dev/null 2>&1 || true
fi
build_mmcv() {
    MAX_JOBS=${MAX_JOBS:-$(nproc)} pip install --no-build-isolation \
        --no-deps --force-reinstall "$@" "$(pinned onedl-mmcv)" &
    local job=$! start=$SECONDS
    while kill -0 $job 2>/dev/null; do
        sleep 1
        if (((SECONDS - start) % 30 == 0)); then
            echo "building mmcv from source: $(((SECONDS - start) / 60)) min" \
                "$(((SECONDS - start) % 60)) s (about 6 min on 2 cores)"
        fi
    done
    wait $job
}
if ! has_ops; then
    echo 'no prebuilt wheel for this torch; taking the source'
    build_mmcv
fi
# pip's cached wheel does not know which torch it was built for.
has_ops || build_mmcv --no-cache-dir
if ! has_ops; then
    echo 'mmcv was built without its ops:' >&2
    "$venv/bin/python" -c 'import mmcv.ops' >&2
    exit 1
fi

say 'mmstepnet'
pip install --no-build-isolation --no-deps -e .
echo "$wanted" > "$stamp"
