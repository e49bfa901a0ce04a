#!/usr/bin/env bash
# setup_env.sh [PART]: make the environment of a stack with this package in
# it, see stack.sh. A second call finds everything there and returns at once,
# or goes on where one was interrupted. PART is
#   basis  enough to classify: no compiled ops of mmcv, no tools of the tests
#   wheel  mmcv's wheel alone, fetched or built; nothing is installed
#   ops    the basis and mmcv with its ops, enough to detect
#   quick  the ops and what tools/run_tests.sh needs without arguments
# and without it, all that the tests need is there.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/stack.sh
part=${1:-all}
if ! [[ $part =~ ^(basis|wheel|ops|quick|all)$ ]]; then
    echo "PART must be basis, wheel, ops or quick, got '$part'" >&2
    exit 2
fi
case $stack in
    onedl) mmcv=onedl-mmcv ;;
    openmmlab) mmcv=mmcv ;;
    core | examples) mmcv= ;;
esac
hosts=requirements/$stack.txt
if [ -z "$mmcv" ]; then
    hosts=requirements/core.txt
    tests=(requirements/tests-core.txt)
    [ "$stack" = core ] || tests+=(requirements/examples.txt)
else
    tests=(requirements/runtime.txt requirements/{tests,docs}.txt
        projects/*/requirements.txt "requirements/tests-$stack.txt")
fi

# What is imported compiles itself then; compiling all of it takes a minute.
export PIP_COMPILE=0

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
# A build takes the environment's ninja.
bin=$(realpath -m "$venv")/bin
pip() {
    PATH="$bin:$PATH" "$bin/python" -m pip --disable-pip-version-check "$@"
}
pinned() { grep "^$1[=<>]" "$hosts"; }
wanted=$(cat "$hosts" requirements/tests-quick.txt "${tests[@]}" \
    pyproject.toml setup.py \
    tools/stack.sh "$0" | sha256sum)
made() { [ "$(cat "$venv/$1.made" 2>/dev/null)" = "$wanted" ]; }
# In one call, so that nothing replaces the pinned torch and setuptools.
install() {
    local files=("$venv/hosts.txt" "$@")
    grep -v "^${mmcv:-none}=" "$hosts" > "$venv/hosts.txt"
    pip install --quiet "${files[@]/#/--requirement=}"
    if [ "$stack" = openmmlab ]; then
        # openmim pins one that does not read pyproject.toml's metadata; newer
        # ones than this no longer make the editable layout it looks for.
        pip install --quiet --no-deps 'setuptools==63.4.3'
    fi
}

make_basis() {
    say "environment $venv"
    [ -x "$venv/bin/python" ] || "$(find_python)" -m venv "$venv"
    pip install --quiet "$(pinned torch)" "$(pinned torchvision)" \
        "$(pinned setuptools)" wheel ninja psutil
    if [ -n "$mmcv" ]; then
        say 'OpenMMLab packages'
        install requirements/runtime.txt
        # Where torch is hidden from its setup, mmcv comes without its ops.
        pinned setuptools > "$venv/build.txt"
        "$venv/bin/python" -c 'import mmcv' 2>/dev/null ||
            PIP_CONSTRAINT=$(realpath "$venv/build.txt") pip install --quiet \
                --use-pep517 --no-deps --no-cache-dir "$(pinned "$mmcv")"
    fi
    say 'mmstepnet'
    # Environments that are made beside each other share this folder's build.
    (
        flock 9 2>/dev/null || true
        pip install --quiet --no-build-isolation --no-deps -e .
    ) 9< setup.py
    echo "$wanted" > "$venv/basis.made"
}

# pip's cache does not know which torch a wheel was built for.
name_wheel() {
    fits=$("$venv/bin/python" -c 'import sys, torch; print(
        "torch-%s-cp%d%d" % (torch.__version__, *sys.version_info[:2]))')
    wheels="$(pip cache dir 2>/dev/null || echo "$venv")/mmstepnet/$fits"
    source="$venv/mmcv"
}
fetch_wheel() {
    local link
    # mim knows where wheels for some versions of torch lie.
    link=$("$venv/bin/python" -W ignore -c '
from mim.commands.install import DEFAULT_MMCV_BASE_URL, get_mmcv_full_find_link
print(get_mmcv_full_find_link(DEFAULT_MMCV_BASE_URL))')
    say "mmcv for $fits: looking for a wheel"
    timeout 120 "$venv/bin/python" -m pip wheel --quiet --no-deps \
        --retries 1 --only-binary=:all: --find-links "$link" \
        --wheel-dir "$wheels" "$(pinned "$mmcv")" >/dev/null 2>&1
}
# Reading one header takes three quarters of the time of mmcv's files. Where it
# cannot be compiled, or a compiler does not use it, the build goes on without.
precompile() {
    local flags
    flags=$("$venv/bin/python" -W ignore -c '
import setuptools, sysconfig, torch
from distutils.ccompiler import new_compiler
from distutils.sysconfig import customize_compiler
from torch.utils.cpp_extension import include_paths
compiler = new_compiler()
customize_compiler(compiler)
print(*compiler.compiler_so[1:], "-std=c++17",
      *(f"-I{p}" for p in [*include_paths(), sysconfig.get_path("include")]),
      *[] if torch.compiled_with_cxx11_abi() else
      ["-D_GLIBCXX_USE_CXX11_ABI=0"])' 2>/dev/null) || return 0
    # shellcheck disable=SC2086
    if "${CXX:-c++}" $flags -x c++-header "$1" -o "$1.new" 2>/dev/null; then
        mv "$1.new" "$1.gch"
    fi
}
build_wheel() {
    say "mmcv for $fits: building, about 6 minutes of one core"
    if ! [ -d "$source" ]; then
        rm -rf "$source.new"
        pip download --quiet --no-deps --no-build-isolation \
            --no-binary=:all: --dest "$source.new" "$(pinned "$mmcv")"
        tar -xzf "$source.new"/*.tar.gz -C "$source.new" --strip-components 1
        mv "$source.new" "$source"
    fi
    # Debug symbols would take two thirds of the time. CFLAGS replace all that
    # Python was built with, so they optimise, too.
    local -x CFLAGS='-g0 -O2'
    local header
    header=$(realpath "$source")/mmcv/ops/csrc/common/pytorch_cpp_helper.hpp
    # In place, where ninja goes on after an interruption.
    [ -e "$header.gch" ] || precompile "$header"
    # A compiled header is used where it comes before all others.
    [ ! -e "$header.gch" ] || CFLAGS+=" -include $header"
    MMCV_WITH_OPS=1 MAX_JOBS=${MAX_JOBS:-$(nproc)} pip wheel \
        --verbose --no-deps --no-build-isolation \
        --wheel-dir "$source/dist" "$source" > "$venv/mmcv.log" 2>&1 &
    local job=$! seconds=0
    while kill -0 $job 2>/dev/null; do
        sleep 1
        if ((++seconds % 30 == 0)); then
            echo "mmcv: file $(grep -aoE '[0-9]+/[0-9]+\]' "$venv/mmcv.log" |
                tail -n 1 | tr -d ']')"
        fi
    done
    wait $job || {
        tail -n 30 "$venv/mmcv.log" >&2
        echo "mmcv could not be built, see $venv/mmcv.log. The first error:" >&2
        grep -aim 1 -E 'error( C[0-9]+)?:' "$venv/mmcv.log" >&2 || true
        exit 1
    }
    mkdir -p "$wheels"
    mv "$source/dist"/*.whl "$wheels"
    rm -r "$source"
}
has_wheel() { compgen -G "$wheels/*.whl" >/dev/null; }
has_ops() {
    [ "$(cat "$venv/ops.made" 2>/dev/null)" = "$fits" ] &&
        "$venv/bin/python" -c 'import mmcv.ops' 2>/dev/null
}
install_ops() {
    pip install --quiet --no-deps --force-reinstall "$wheels"/*.whl
    echo "$fits" > "$venv/ops.made"
}
install_wheel() {
    has_ops || install_ops
    if ! has_ops; then
        echo 'that wheel has no ops for this torch'
        rm -r "$wheels"
        build_wheel
        install_ops
    fi
    if ! has_ops; then
        echo 'mmcv was built without its ops:' >&2
        "$venv/bin/python" -c 'import mmcv.ops' >&2
        exit 1
    fi
}

exit_if_made() {
    if made all || { [ "$part" = quick ] && made quick; }; then
        exit
    fi
}
# Two calls at once, in two terminals, would write over each other's files.
# A build that outlives its call holds the lock, too.
wait_for_others() {
    mkdir -p "$venv"
    exec 8> "$venv/setup.lock"
    if command -v flock >/dev/null && ! flock -n 8; then
        say "waiting for another call, which makes $venv"
        flock 8
    fi
}

exit_if_made
wait_for_others
exit_if_made
if [ "$part" != wheel ]; then
    made basis || make_basis
fi
if [ -n "$mmcv" ] && [ "$part" != basis ]; then
    name_wheel
    if ! has_ops; then
        has_wheel || fetch_wheel || build_wheel
    fi
    [ "$part" = wheel ] || install_wheel
fi
if [ "$part" = quick ]; then
    say 'what the quick tests need'
    install requirements/tests-quick.txt
    echo "$wanted" > "$venv/quick.made"
elif [ "$part" = all ]; then
    say 'what the tests need'
    install "${tests[@]}"
    echo "$wanted" > "$venv/all.made"
fi
