"""An agent on a device that outlives the link to it: started apart, found again by its pid file, or killed.

place.py uses these scripts; they run through `Transport.run`, whose own programs die with the link. A job is a folder
ROOT/jobs/<owner>-<nonce>/; what runs in it keeps there `pid` (of its own process group), `rc` (exit status, written
last), `stdout`, `stderr`, and the agent's result and log. Its name stands in the command line of every process of it,
so a number that the kernel has given to somebody else is never taken for ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.errors import TransferFailed
from farm.transports.base import shell_words

RESULT_LIMIT = 64 << 20
"""A result file beyond this is not one (a thousand outputs take well under 1 MiB)."""
LOG_LIMIT = 1 << 20
"""A log longer than this keeps its first and last half: a driver in a loop can print gigabytes."""
KILL_S = 10.0
"""How long killing may take, on top of the call's own time-out."""
_FILES = (("rc", 16), ("result.json", RESULT_LIMIT), ("log.txt", LOG_LIMIT), ("stdout", 1 << 16), ("stderr", 1 << 16))

_ALIVE = """alive() {
p=$(cat "$1/pid" 2>/dev/null) && [ "$p" -gt 1 ] 2>/dev/null || return 1
kill -0 "$p" 2>/dev/null || return 1
if [ -r "/proc/$p/cmdline" ]; then grep -qs "${1##*/}" "/proc/$p/cmdline"
elif [ -r /proc/self/cmdline ]; then return 1
else ps -o command= -p "$p" | grep -q "${1##*/}"; fi
}
"""

_NAMES = " ".join(name for name, _ in _FILES)
_TELL = (
    """give() {
[ -f "$1" ] || return 0
s=$(wc -c <"$1"); s=$((s+0))
if [ "$s" -le "$2" ]; then echo "$1 $s 0"; head -c "$s" "$1"
else h=$(($2/2)); echo "$1 $h $h"; head -c "$h" "$1"; tail -c "$h" "$1"; fi
echo
}
tell() { """
    + "; ".join(f"give {name} {limit}" for name, limit in _FILES)
    + "; echo end; }\n"
)
"""Each process costs a millisecond or more on a phone, so a job that has ended is told by two (see `tell_all`)."""

_TELL_ALL = (
    _TELL
    + f"""tell_all() {{
[ -s rc ] || {{ tell; return; }}
z=$(wc -c {_NAMES} 2>/dev/null)
big=$(echo "$z" | while read -r n f; do [ "$f" != total ] && [ "$n" -gt 65536 ] && echo big; done)
[ "$big" ] && {{ tell; return; }}
echo all; echo "$z"; echo; cat {_NAMES} 2>/dev/null; echo; echo end
}}
"""
)

# The subshell forgets FARM_JOB at once: by it the transport finds what has to die with a broken link.
_START = """d=$1; shift
mkdir -p "$d" && cd "$d" || exit 97
if command -v setsid >/dev/null 2>&1; then s=setsid; else s=; set -m; fi
(
unset FARM_JOB
exec </dev/null >/dev/null 2>&1
exec $s sh -c 'trap "" HUP; echo $$ >pid; "$@" >stdout 2>stderr; echo $? >rc' sh "$@"
) 2>/dev/null &
wait $!
tell_all
"""

_FOLLOW = (
    _ALIVE
    + _TELL
    + """cd "$1" 2>/dev/null || { echo gone; exit 0; }
i=0; quiet=0
while [ ! -s rc ] && [ $i -lt "$2" ] && [ $quiet -lt 5 ]; do
if alive "$1"; then quiet=0; else quiet=$((quiet+1)); fi
sleep 0.1 2>/dev/null || sleep 1
i=$((i+1))
done
tell
"""
)

_KILL = (
    _ALIVE
    + """end() {
n=0
while alive "$1"; do
kill -9 "-$p" 2>/dev/null || kill -9 "$p" 2>/dev/null
n=$((n+1)); [ $n -gt 40 ] && { echo "alive $p"; exit 98; }
sleep 0.05 2>/dev/null || sleep 1
done
}
"""
)

_END = _KILL + 'end "$1"; echo dead\n'

_SWEEP = (
    _KILL
    + """cd "$1" 2>/dev/null || exit 0
for d in *; do
case $d in *[!0-9a-f-]*|"$2"-*) continue;; esac
[ -d "$d" ] && [ ! -L "$d" ] || continue
end "$1/$d"; rm -rf "./$d"; echo "$d"
done
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a job's folder holds. exit_status: None while the agent runs, or if it was killed from outside."""

    exit_status: int | None
    result: bytes | None
    log: bytes
    stdout: bytes
    stderr: bytes


def start_argv(
    folder: str, argv: Sequence[str], *, guard: Sequence[str] = (), remove: Sequence[str] = ()
) -> tuple[str, ...]:
    """Start an agent in `folder`, wait for its end and tell what it left; it goes on if the link breaks.

    guard: `sh -c SCRIPT sh WORD…`, whose answer must begin with `mine `, or nothing is started (see `refused`).
    remove: folders of jobs that are done with, removed meanwhile. All in one round trip, for a link's latency costs
    more than the agent does.
    """
    script = _TELL_ALL
    if guard:
        # A function, not a shell of its own: that would be one more process on the device.
        _, _, body, _, *words = guard
        script += (
            f"guard() (\nset -- {shell_words(words, {})}\n{body}\n)\n"
            'g=$(guard 2>&1) || g="error $g"\n'
            "case $g in 'mine '*) ;; *) echo guard; echo \"$g\"; exit 0;; esac\n"
        )
    if remove:
        script += f"{shell_words(['rm', '-rf', *remove], {})} </dev/null >/dev/null 2>&1 &\n"
    return ("sh", "-c", script + _START, "sh", folder, *argv)


def refused(said: bytes) -> str | None:
    """What the guard of `start_argv` answered if it let nothing start, else None."""
    first, _, rest = said.partition(b"\n")
    return rest.decode(errors="replace") if first == b"guard" else None


def follow_argv(folder: str, limit_s: float) -> tuple[str, ...]:
    """Wait up to `limit_s` seconds for a job started over an earlier link, and tell what it left."""
    return ("sh", "-c", _FOLLOW, "sh", folder, str(max(1, int(limit_s * 10))))


def end_argv(folder: str) -> tuple[str, ...]:
    """Kill what runs in a job's folder, and answer `dead` once it is."""
    return ("sh", "-c", _END, "sh", folder)


def sweep_argv(jobs: str, owner: str) -> tuple[str, ...]:
    """Kill and remove every job in `jobs` that is not `owner`'s, and tell their names. What we never made stays."""
    return ("sh", "-c", _SWEEP, "sh", jobs, owner)


def remains(said: bytes) -> Remains | None:
    """Read the answer to `start_argv` or `follow_argv`; None if the folder is gone. Raises TransferFailed."""
    if said.strip() == b"gone":
        return None
    if said.startswith(b"all\n"):
        return _remains(_all(said[4:]))
    found: dict[str, bytes] = {}
    at = 0
    while True:
        line, newline, _ = said[at:].partition(b"\n")
        if line == b"end":
            break
        words = line.split()
        if not newline or len(words) != 3 or not (words[1].isdigit() and words[2].isdigit()):
            raise TransferFailed("the device's account of a job did not arrive whole", output=repr(line[:200]))
        at += len(line) + 1
        head, tail = int(words[1]), int(words[2])
        first, last = said[at : at + head], said[at + head : at + head + tail]
        at += head + tail + 1
        found[words[0].decode("ascii", "replace")] = first + (b"\n[...]\n" + last if tail else b"")
    return _remains(found)


def _all(said: bytes) -> dict[str, bytes]:
    """Read what `tell_all` says of small files: `wc`'s lines, an empty one, then their bytes one after the other."""
    head, _, body = said.partition(b"\n\n")
    rows = [line.split() for line in head.splitlines()]
    sizes = {row[1].decode("ascii", "replace"): int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()}
    found: dict[str, bytes] = {}
    at = 0
    for name, _ in _FILES:
        if name in sizes:
            found[name] = body[at : at + sizes[name]]
            at += sizes[name]
    if "rc" not in found or body[at:] != b"\nend\n":
        raise TransferFailed("the device's account of a job did not arrive whole", output=repr(said[-200:]))
    return found


def _remains(found: dict[str, bytes]) -> Remains:
    status = found.get("rc", b"").strip()
    return Remains(
        exit_status=int(status) if status.isdigit() else None,
        result=found.get("result.json"),
        log=found.get("log.txt", b""),
        stdout=found.get("stdout", b""),
        stderr=found.get("stderr", b""),
    )
