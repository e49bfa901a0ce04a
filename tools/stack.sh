# Sourced by the scripts beside it: `stack` and its environment, `venv`.
# STACK=onedl (the default) or STACK=openmmlab; VENV names another folder.
stack=${STACK:-onedl}
case $stack in
    onedl) venv=${VENV:-.venv} ;;
    openmmlab) venv=${VENV:-.venv-openmmlab} ;;
    *)
        echo "STACK must be onedl or openmmlab, got '$stack'" >&2
        exit 2
        ;;
esac
