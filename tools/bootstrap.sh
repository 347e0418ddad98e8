#!/bin/sh
# Make .venv ready, from the lock files alone: `tools/bootstrap.sh run` for the farm, `... dev` for tests and checks too.
# Called by every make target; does nothing when the lock files, the Python and this folder are as they were.
# A machine it cannot work on gets one sentence naming the one thing to do, before anything is made.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-run}
here=$(pwd -P)

say() { printf '%s\n' "$*" >&2; }
stop() {
    say "farm: $*"
    exit 1
}

system=$(uname -s)
machine=$(uname -m)
case "$system/$machine" in
Linux/x86_64 | Linux/aarch64 | Linux/arm64 | Darwin/arm64) ;;
Darwin/x86_64)
    if [ "$(sysctl -n hw.optional.arm64 2>/dev/null || echo 0)" = 1 ]; then
        stop "this shell runs under Rosetta; open a native one (arch -arm64 zsh) and call make again."
    fi
    stop "LiteRT has no package for Intel Macs; use an Apple-silicon Mac or a 64-bit Linux machine."
    ;;
Linux/*) stop "LiteRT has no package for Linux on $machine; use an x86-64 or arm64 machine." ;;
*) stop "LiteRT has no package for $system on $machine; use Linux (x86-64, arm64) or an Apple-silicon Mac." ;;
esac
if [ "$system" = Linux ] && (ldd --version 2>&1 || true) | grep -qi musl; then
    stop "LiteRT has no package for musl libc (Alpine); use a glibc system such as Debian or Ubuntu."
fi

# A Python is right when it is 3.10 to 3.14 (what the locked LiteRT has packages for) and 64-bit.
right='import struct, sys; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 14) and struct.calcsize("P") == 8))'
python=
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python3.14}; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -c "$right" >/dev/null 2>&1; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    found=$(python3 --version 2>/dev/null || echo "no python3")
    case "$system" in
    Darwin) stop "needs a 64-bit Python 3.10 to 3.14 and found $found; install one: brew install python@3.13" ;;
    *) stop "needs a 64-bit Python 3.10 to 3.14 and found $found; install one (Debian, Ubuntu: sudo apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3" ;;
    esac
fi
if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    package=python3-venv
    [ "$python" = python3 ] || package=python$version-venv
    stop "$python lacks the venv module; install it: sudo apt install $package"
fi

case "$kind" in
run) lock=requirements.lock ;;
dev) lock=requirements-dev.lock ;;
*) stop "tools/bootstrap.sh takes run or dev, not '$kind'" ;;
esac

# A C compiler that links; the macOS stub would open a window, so ask for the tools' folder first.
has_cc() {
    [ "$system" != Darwin ] || xcode-select -p >/dev/null 2>&1 || return 1
    command -v cc >/dev/null 2>&1 || return 1
    probe=$(mktemp) || return 1
    if printf '#include <stdio.h>\nint main(void) { return 0; }\n' | cc -x c - -o "$probe" >/dev/null 2>&1; then ok=0; else ok=1; fi
    rm -f "$probe"
    return $ok
}

stamp=.venv/.farm-installed
if [ -x .venv/bin/python ] && .venv/bin/python -c "$right" >/dev/null 2>&1 && [ "$(sed -n 1p "$stamp" 2>/dev/null)" = "$here" ]; then
    installed=$(sed -n 2p "$stamp")
else
    installed=
fi
# What the folder must hold: the lock files' bytes, the project's metadata, and the kind (dev holds everything of run).
state() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(b"".join(open(f, "rb").read() for f in sys.argv[1:])).hexdigest())' "$@"; }
want_run=$(state requirements.lock requirements-zig.lock pyproject.toml)
want_dev=$(state requirements-dev.lock requirements-zig.lock pyproject.toml)
if [ "$installed" = "dev $want_dev" ]; then exit 0; fi
if [ "$kind" = run ] && [ "$installed" = "run $want_run" ]; then exit 0; fi

# Settings that would send packages elsewhere than into .venv.
unset PIP_USER PIP_TARGET PIP_PREFIX PYTHONHOME PYTHONPATH
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
# Packages come built, so that no compiler is needed. adbutils alone has a built one for x86-64 only; its source is Python.
binary="--only-binary :all:"
[ "$system/$machine" = Linux/x86_64 ] || binary="--only-binary :all: --no-binary adbutils"
failed="the packages could not be installed (pip's words are above); check the network or the package index, then call make again."

say "farm: setting up .venv ($("$python" --version 2>&1), packages from $lock; once) ..."
if [ -z "$installed" ] && ! { [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 && [ ! -e "$stamp" ]; }; then
    "$python" -m venv --clear .venv || stop "could not make .venv (see above)."
fi
pip install --quiet --require-hashes $binary -r "$lock" || stop "$failed"
if [ "$kind" = run ] && ! has_cc; then
    say "farm: no C compiler here; installing zig into .venv to build the agent (about 90 MB) ..."
    pip install --quiet --require-hashes $binary -r requirements-zig.lock || stop "$failed"
fi
pip install --quiet --no-deps --no-build-isolation --editable . || stop "$failed"
if [ "$kind" = run ] && ! has_cc; then
    say "farm: building the agent with zig (once, a minute or two) ..."
    # A failure is not told here: the sweep meets it again and says it in full.
    .venv/bin/python -m farm agent build >/dev/null 2>&1 || true
fi
if [ "$kind" = dev ]; then want=$want_dev; else want=$want_run; fi
printf '%s\n%s %s\n' "$here" "$kind" "$want" >"$stamp"
say "farm: .venv is ready."
