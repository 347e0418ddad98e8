#!/bin/sh
# Write the lock files from pyproject.toml: every version with its hashes, for Python 3.10-3.13 on Linux and macOS.
# Needs `uv` on PATH or in .venv. The files name no package index, so they work behind any mirror.
set -eu
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv

lock() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-annotate --no-header "$@" -o "$out"
}
lock requirements.lock pyproject.toml --group build
lock requirements-dev.lock pyproject.toml --group build --group dev -c requirements.lock
# Only where a machine has no C compiler: zig compiles the agent.
grep -A1000 '^ziglang==' requirements-dev.lock | awk 'NR > 1 && /^[a-z]/ { exit } { print }' >requirements-zig.lock
