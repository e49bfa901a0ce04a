# Sourced by the scripts beside it: `stack` and its environment, `venv`.
# STACK=onedl (the default), STACK=openmmlab, STACK=core: the library alone,
# without OpenMMLab, or STACK=examples: that and what only the examples need;
# VENV names another folder.
stack=${STACK:-onedl}
case $stack in
    onedl) venv=${VENV:-.venv} ;;
    openmmlab) venv=${VENV:-.venv-openmmlab} ;;
    core) venv=${VENV:-.venv-core} ;;
    examples) venv=${VENV:-.venv-examples} ;;
    *)
        echo "STACK must be onedl, openmmlab, core or examples, got '$stack'" >&2
        exit 2
        ;;
esac
