#!/usr/bin/env bash
# Make .venv from a lock: `requirements/install.sh cpu` or `dev`. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "Error: $1" >&2; exit 1; }

supported() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if supported "$candidate"; then echo "$candidate"; return; fi
    done
    fail "reckon needs Python 3.11 or 3.12, found neither as ${PYTHON:-python3.11, python3.12 or python3} ($(python3 --version 2>&1 || true)). Install one, or name it: make setup PYTHON=/path/to/python3.11"
}

lock="requirements/$1.txt"
[ -f "$lock" ] || fail "no lock $lock; there are $(cd requirements && ls *.txt | grep -v no-cuda | tr '\n' ' ')"
stamp=".venv/.$1-$(cksum "$lock" | cut -d' ' -f1)"
[ -e "$stamp" ] && exit 0

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

# A plain `torch` brings gigabytes of CUDA packages, so its CPU build is asked for first: as pip is
# configured, then from PyTorch's own index, which serves this one package alone.
torch=$(sed -n 's/^torch==//p' "$lock")
if ! .venv/bin/python -c "from importlib.metadata import version; assert version('torch').startswith('$torch')" 2>/dev/null; then
    echo "setup: installing torch $torch (CPU build)"
    pip install "torch==$torch+cpu" ||
        pip install --retries 1 --timeout 15 --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" ||
        echo "setup: no CPU build to be had; the default build follows"
fi

echo "setup: installing $(grep -c == "$lock") packages of $lock (about a minute)"
if ! pip install -r "$lock"; then
    grep -iE '^error' "$log" | tail -n 5 >&2 || true
    fail "installing $lock failed; the whole log is $log"
fi
rm -f ".venv/.$1-"*
touch "$stamp"
echo "setup: done"
