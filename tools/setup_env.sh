#!/usr/bin/env bash
# Makes the environment of one stack with this package in it: STACK=onedl (the
# default, .venv), STACK=openmmlab (.venv-openmmlab), STACK=core (.venv-core) or
# STACK=examples (.venv-examples). A second call finds everything there and
# returns at once. PYTHON names the interpreter, VENV the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stack.sh
case $stack in
    onedl) version=3.11 mmcv=onedl-mmcv ;;
    openmmlab) version=3.10 mmcv=mmcv ;;
    core | examples) version=3.11 mmcv= ;;
esac
stamp="$venv/mmstepnet.stamp"
hosts=requirements/$stack.txt
if [ -z "$mmcv" ]; then
    hosts=requirements/core.txt
    tests=(requirements/tests-core.txt)
    [ "$stack" = core ] || tests+=(requirements/examples.txt)
else
    tests=(requirements/runtime.txt requirements/tests.txt
        projects/*/requirements.txt "requirements/tests-$stack.txt")
fi

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
pinned() { grep "^$1[=<]" "$hosts"; }
has_ops() { "$venv/bin/python" -c 'import mmcv.ops' 2>/dev/null; }
find_python() {
    local candidate
    for candidate in "${PYTHON:-python$version}" \
        "$(pyenv root 2>/dev/null)/versions/$version".*/bin/python; do
        # pyenv's shims are there for versions that are switched off, too.
        if "$candidate" -c "import sys; sys.exit(
                '%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null
        then
            echo "$candidate"
            return
        fi
    done
    echo "no Python $version here: install it, or name it with PYTHON=..." >&2
    return 1
}

wanted=$(cat "$hosts" "${tests[@]}" pyproject.toml setup.py "$0" | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
say "environment $venv"
if ! [ -x "$venv/bin/python" ]; then
    python=$(find_python)
    "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip install "$(pinned torch)" "$(pinned torchvision)" \
    "$(pinned setuptools)" wheel ninja psutil

finish() {
    say 'mmstepnet'
    pip install --no-build-isolation --no-deps -e .
    echo "$wanted" > "$stamp"
    exit
}
if [ -z "$mmcv" ]; then
    pip install "${tests[@]/#/--requirement=}"
    finish
fi

say 'OpenMMLab packages'
# In one call, so that nothing replaces the pinned torch and setuptools.
grep -v "^$mmcv=" "$hosts" > "$venv/hosts.txt"
pip install -r "$venv/hosts.txt" "${tests[@]/#/--requirement=}"

if ! has_ops; then
    say 'mmcv with its ops'
    # mim knows where prebuilt wheels for some torch versions lie.
    PATH="$venv/bin:$PATH" timeout 60 "$venv/bin/mim" install --quiet \
        --no-deps --only-binary=:all: "$(pinned "$mmcv")" \
        >/dev/null 2>&1 || true
fi
build_mmcv() {
    MMCV_WITH_OPS=1 MAX_JOBS=${MAX_JOBS:-$(nproc)} pip install \
        --no-build-isolation --no-deps --force-reinstall "$@" \
        "$(pinned "$mmcv")" &
    local job=$! start=$SECONDS
    while kill -0 $job 2>/dev/null; do
        sleep 1
        if (((SECONDS - start) % 30 == 0)); then
            echo "building mmcv from source: $(((SECONDS - start) / 60)) min" \
                "$(((SECONDS - start) % 60)) s (about 8 min on 2 cores)"
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

if [ "$stack" = openmmlab ]; then
    # openmim pins one that does not read pyproject.toml's metadata; newer ones
    # than this no longer make the editable layout that it looks for.
    pip install --no-deps 'setuptools==63.4.3'
fi
finish
