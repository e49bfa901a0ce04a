# Sourced by the scripts beside it: `stack`, its environment `venv` and the
# Pythons that it is made for, the first choice first. STACK=onedl (the
# default), STACK=openmmlab, STACK=core: the library alone, without OpenMMLab,
# or STACK=examples: that and what the examples need. VENV names another
# folder, PYTHON an interpreter.
stack=${STACK:-onedl}
case $stack in
    onedl) venv=${VENV:-.venv} pythons='3.11 3.12 3.10 3.13' ;;
    openmmlab) venv=${VENV:-.venv-openmmlab} pythons='3.10' ;;
    core) venv=${VENV:-.venv-core} pythons='3.11' ;;
    examples) venv=${VENV:-.venv-examples} pythons='3.11' ;;
    *)
        echo "STACK must be onedl, openmmlab, core or examples, got '$stack'" >&2
        exit 2
        ;;
esac
find_python() {
    local version candidate
    for version in $pythons; do
        for candidate in ${PYTHON:-"python$version" \
            "$(pyenv root 2>/dev/null)/versions/$version".*/bin/python}; do
            # pyenv's shims are there for versions that are off, too.
            if "$candidate" -c "import sys; sys.exit(
                    '%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null
            then
                echo "$candidate"
                return
            fi
        done
    done
    echo "${PYTHON:-what is installed} is not Python ${pythons// / or };" \
        'install one, or name it with PYTHON=...' >&2
    return 1
}
