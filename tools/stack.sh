# Sourced by the scripts beside it: `stack` and its environment, `venv`.
# STACK=onedl (the default), STACK=openmmlab, or STACK=core: the library alone,
# without OpenMMLab; VENV names another folder.
stack=${STACK:-onedl}
case $stack in
    onedl) venv=${VENV:-.venv} ;;
    openmmlab) venv=${VENV:-.venv-openmmlab} ;;
    core) venv=${VENV:-.venv-core} ;;
    *)
        echo "STACK must be onedl, openmmlab or core, got '$stack'" >&2
        exit 2
        ;;
esac
