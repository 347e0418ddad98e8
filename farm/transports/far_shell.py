"""How a program is run, watched and killed through a POSIX shell far away: what adb and ssh have in common.

Both links start a command line in a shell and forget it when the link goes: adbd hangs up the shell alone, sshd nothing
at all. So each program gets a session of its own whose id comes back first, and carries a nonce in its environment
(`FARM_JOB`) by which whatever descends from it is found and killed later, over another connection if need be.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from farm.errors import DeviceUnavailable, NoSpace, TransferFailed
from farm.transports.base import Completed, part_name, shell_words

KILL_LIMIT_S = 10.0
"""How long killing may take, on top of the call's own time-out."""

_HASH = """h() {
  if command -v sha256sum >/dev/null; then sha256sum <"$1"
  elif command -v shasum >/dev/null; then shasum -a 256 <"$1"
  elif command -v toybox >/dev/null; then toybox sha256sum <"$1"
  else openssl dgst -sha256 -r <"$1"; fi
}
"""

_LAND = (
    _HASH
    + """land() {
s=$(h "$1" 2>&1); s=${s%% *}
if [ "$s" != "$3" ]; then rm -f "$1"; echo "hash $s"; exit 91; fi
if [ -d "$2" ]; then rm -f "$1"; echo folder; exit 92; fi
chmod "$4" "$1" && mv -f "$1" "$2" && exit 0
rm -f "$1"; exit 93
}
"""
)

_PUSH = (
    _LAND
    + """exec 2>&1
trap 'rm -f "$1"' HUP TERM
mkdir -p "${1%/*}/" || exit 93
cat >"$1" || { rm -f "$1"; exit 93; }
land "$@"
"""
)

_LOOK = (
    _HASH
    + """look() {
[ -e "$1" ] || [ -L "$1" ] || { echo "it is missing" >&2; exit 94; }
[ -d "$1" ] && { echo "it is a folder" >&2; exit 94; }
[ -f "$1" ] || { echo "it is not a regular file but a fifo, socket or device" >&2; exit 94; }
[ -r "$1" ] || { echo "it may not be read" >&2; exit 94; }
}
look "$1"
[ "$2" = no ] || echo "sha256 $(h "$1")" >&2
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program on its way through a far shell. nonce: 32 hex digits."""

    nonce: str
    script: str

    @classmethod
    def make(cls, argv: Sequence[str], env: Mapping[str, str], *, merged: bool = False, stdin_bytes: int = 0) -> Job:
        """Wrap a command. merged: stderr cannot be kept apart and the exit status must come in-band, see `status_of`.

        What the program leaves in its group is killed at its end, and all of it when the link hangs up.
        """
        nonce = secrets.token_hex(16)
        say = f"printf '{nonce} %s\\n' $$"
        begin = (say if merged else f"{say}; {say} >&2") + '; exec "$@"'
        # A merged link cannot end stdin without ending all of it, so there the far side counts the bytes.
        feed = f"head -c {stdin_bytes} <&3 | " if merged and stdin_bytes else ""
        source = "" if feed else "</dev/null" if merged else "<&3"
        # The last word of a list may replace the shell, and setsid then forks and is not waited for: hence & and wait.
        # A shell gives background programs /dev/null for stdin unless it comes from another descriptor.
        script = (
            "if command -v setsid >/dev/null 2>&1; then s=setsid; else s=; set -m; fi\n"
            "trap '[ \"$!\" ] && kill -9 -$!; exit 129' HUP TERM INT PIPE\n"
            + ("exec 2>&1\n" if merged else "")
            + "exec 3<&0\n"
            f"{feed}FARM_JOB={nonce} $s sh -c {shlex.quote(begin)} sh {shell_words(argv, env)} {source} 3<&- &\n"
            "g=$!\n"
            "exec 3<&- </dev/null 2>/dev/null\n"
            "wait $g; r=$?\n"
            # What is left in the group is killed, and gone before the end is told.
            # (Dead ones that nobody reaps still count for kill -0, so where there is /proc that is asked.)
            "if kill -9 -$g; then n=0; [ -r /proc/self/environ ] && p=/proc || p=\n"
            f"while [ $n -lt 40 ] && if [ $p ]; then grep -qs {nonce} $p/[0-9]*/environ; else kill -0 -$g; fi\n"
            "do sleep 0.05 || sleep 1; n=$((n+1)); done; fi\n"
            + (f"printf '{nonce}:%s' $r\nexit 0" if merged else "exit $r")
        )
        return cls(nonce=nonce, script=script)

    def group(self, *streams: bytes | bytearray) -> int | None:
        """The far process group, once it has told us."""
        for stream in streams:
            if found := re.search(self.nonce.encode() + rb" (\d+)\n", stream):
                return int(found[1])
        return None

    def strip(self, stream: bytes | bytearray) -> bytes:
        """A stream without our first line and without what start-up files printed before it."""
        found = re.search(self.nonce.encode() + rb" \d+\n", stream)
        return bytes(stream[found.end() :]) if found else bytes(stream)

    def status_of(self, stream: bytes | bytearray) -> tuple[int | None, bytes]:
        """Take the in-band exit status off a merged stream; None if it never came: the end was not seen."""
        found = re.search(self.nonce.encode() + rb":(\d+)$", stream)
        return (int(found[1]), self.strip(stream[: found.start()])) if found else (None, self.strip(stream))

    def killer(self, group: int | None, *, stale: bool = False) -> str:
        """A script that kills the whole job and answers `dead` once nothing of it runs any more.

        The nonce stands in the command line of the shell that starts the job and in the environment of all that
        descends from it; on Linux and Android both are found in /proc, also outside of the group. A job that has not
        told its group yet may be just starting, so its absence is believed only after a while. stale: so much time may
        have passed that the group's number can belong to others; it is killed only if it still carries the nonce.
        """
        # A bracket keeps the pattern from finding itself in the command lines of the killer and its grep.
        pattern = f"'[{self.nonce[0]}]{self.nonce[1:]}'"
        ours = f"ps -E -o command= -p {group} | grep -q {pattern}" if stale else ":"
        of_group = (
            f"if if [ -r /proc/self/environ ]; then grep -qs {pattern} /proc/{group}/environ; else {ours}; fi\n"
            f"then kill -9 -{group} || kill -9 {group}; fi\n"
        )
        return (
            f"exec 2>/dev/null\n{of_group if group else ''}i=0; quiet=0\n"
            "while [ $i -lt 60 ]; do\n"
            "if [ -r /proc/self/environ ]; then\n"
            f"  a=$(grep -ls {pattern} /proc/[0-9]*/environ /proc/[0-9]*/cmdline)\n"
            f"else a=$(ps -axo pid=,command= | grep {pattern} | awk '{{print $1}}'); fi\n"
            "for e in $a; do e=${e#/proc/}; kill -9 ${e%%/*}; done\n"
            '[ -z "$a" ] && quiet=$((quiet+1)) || quiet=0\n'
            f"[ $quiet -ge {2 if group else 10} ] && echo dead && exit 0\n"
            "sleep 0.1 || sleep 1; i=$((i+1)); done\n"
            'echo "alive $a"; exit 1'
        )


def part_of(remote: str) -> str:
    """Where a file waits on the far side until its bytes are known to be right: in the same folder."""
    path = PurePosixPath(remote)
    return str(path.parent / part_name(path.name))


def push_argv(part: str, remote: str, sha256: str, mode: int) -> tuple[str, ...]:
    """A command that takes a file from stdin into `part`, checks it and gives it its name, or removes it."""
    return ("sh", "-c", _PUSH, "sh", _plain(part), _plain(remote), sha256, f"{mode:o}")


def land_argv(part: str, remote: str, sha256: str, mode: int) -> tuple[str, ...]:
    """A command that checks what arrived under `part` and gives it its name, or removes it."""
    return ("sh", "-c", _LAND + 'land "$@" 2>&1', "sh", _plain(part), _plain(remote), sha256, f"{mode:o}")


def check_landed(done: Completed, remote: str, sha256: str) -> None:
    """Read the answer to `push_argv` or `land_argv`. Raises TransferFailed or NoSpace."""
    if done.exit_status == 0:
        return
    said = (done.stdout + done.stderr).decode(errors="replace").strip()
    if is_full_text(said):
        raise NoSpace(f"no space left on the device for {remote}; free some space there and run again", output=said)
    why = {
        91: f"its sha256 there is {said.rpartition('hash ')[2] or 'unknown'}, not {sha256}; it was removed",
        92: "a folder of that name is in the way",
    }.get(done.exit_status or 0, said or f"exit status {done.exit_status}")
    raise TransferFailed(f"{remote} did not arrive whole: {why}", output=said)


def pull_argv(remote: str, *, want_hash: bool) -> tuple[str, ...]:
    """A command that gives a file on stdout and, if wanted, its sha256 on stderr."""
    return ("sh", "-c", _LOOK + 'exec cat "$1"', "sh", _plain(remote), "yes" if want_hash else "no")


def look_argv(remote: str, *, want_hash: bool) -> tuple[str, ...]:
    """A command that tells whether a far file can be pulled, and its sha256."""
    return ("sh", "-c", _LOOK, "sh", _plain(remote), "yes" if want_hash else "no")


def sha256_seen(done: Completed, remote: str) -> str | None:
    """Read the answer to `pull_argv` or `look_argv`. Raises TransferFailed if there is no such file."""
    said = done.stderr.decode(errors="replace").strip()
    if done.exit_status != 0:
        raise TransferFailed(f"cannot pull {remote}: {said or f'exit status {done.exit_status}'}", output=said)
    if "sha256 " not in said:
        return None
    if not (found := re.search(r"sha256 ([0-9a-f]{64})\b", said)):
        raise TransferFailed(f"cannot pull {remote}: the device gave no sha256 of it ({said[:200]!r})")
    return found[1]


def is_full_text(said: str) -> bool:
    """Does a far program's complaint mean a full disk?"""
    return "no space left" in said.lower() or "disk quota exceeded" in said.lower()


def _plain(path: str) -> str:
    """A far path that no program can take for an option."""
    return f"./{path}" if path.startswith("-") else path


def was_killed(done: Completed) -> bool:
    """Read the answer to the killer script."""
    return done.exit_status == 0 and done.stdout.strip() == b"dead"


def undead(argv: Sequence[str], why: str) -> DeviceUnavailable:
    """The error for a far program that outlived being killed."""
    return DeviceUnavailable(
        f"{argv[0]} outlived its deadline on the device and could not be killed ({why}); restart the device before"
        " trusting it again",
        argv=tuple(argv),
    )
