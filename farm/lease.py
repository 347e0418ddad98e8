"""Who may use a device: a lease that lies on the device itself, so that two farms never use it at once.

ROOT/lease/<n>/data holds nonce, time of expiry (the device's own clock), owner and reason, a line each. The highest n
is the lease that counts; `mkdir` makes it, which only one of two can. n is the fencing token: whoever wakes up late
finds a higher one and is refused. Session takes it, renews it before each agent process and gives it back.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from farm.errors import DeviceLeased, DeviceLost, LeaseLost, NoSpace, TransferFailed
from farm.transports.base import Deadline, Transport

TTL_S = 60.0
"""How long a farm that was killed keeps the device beyond the cell it was in."""
POLL_S = 2.0

_SCRIPT = r"""
d=$1/lease; op=$2; me=$3; ttl=$4; who=$5; why=$6; mine=$7
now=$(date +%s)
top() { t=0; for f in "$d"/*; do f=${f##*/}
  case $f in ''|*[!0-9]*|??????????*) ;; *) [ "$f" -gt "$t" ] && t=$f;; esac; done; }
load() { n=; u=0; o=; r=
  if [ -f "$d/$1/data" ]; then { IFS= read -r n; IFS= read -r u; IFS= read -r o; IFS= read -r r; } <"$d/$1/data"
    case $u in ''|*[!0-9]*) u=0;; esac
  elif [ "$1" -gt 0 ] && [ -z "$(find "$d/$1" -maxdepth 0 -mmin +1 2>/dev/null)" ]; then
    u=$((now+60)); o='a farm that is taking it right now'; fi; }
save() { printf '%s\n%s\n%s\n%s\n' "$me" "$1" "$who" "$why" >"$d/$t/.$me" && mv "$d/$t/.$me" "$d/$t/data"; }
tell() { echo "held $1 $u $now"; echo "$o"; echo "$r"; exit 0; }
next() { old=$t; t=$((t+1)); mkdir "$d/$t" 2>/dev/null || { echo raced; exit 0; }; }
clean() { for f in "$d"/*; do f=${f##*/}; case $f in ''|*[!0-9]*|??????????*) ;; *)
  [ "$f" -lt "$old" ] && rm -rf "$d/$f";; esac; done; }
case $op in take|break) mkdir -p "$d" || exit 95;; esac
top; load "$t"
case $op in
take)
  if [ "$n" = "$me" ]; then save $((now+ttl)) || exit 95; echo "mine $t"; exit 0; fi
  [ "$u" -gt "$now" ] && tell "$t"
  next
  # The one before may have renewed it in this very moment: then it is still theirs.
  load "$old"
  if [ "$u" -gt "$now" ]; then rmdir "$d/$t"; tell "$old"; fi
  save $((now+ttl)) || exit 95
  clean; echo "mine $t";;
check)
  [ "$t" = "$mine" ] && [ "$n" = "$me" ] || tell "$t"
  save $((now+ttl)) || exit 95
  top; [ "$t" = "$mine" ] || { load "$t"; tell "$t"; }
  echo "mine $t";;
free)
  [ "$t" = "$mine" ] && [ "$n" = "$me" ] && save 0
  echo free;;
break)
  [ "$u" -gt "$now" ] || { echo free; exit 0; }
  was="held $t $u $now"; o1=$o; r1=$r; next; save 0 || exit 95; clean
  echo "$was"; echo "$o1"; echo "$r1";;
show)
  [ "$u" -gt "$now" ] && tell "$t"
  echo free;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a device. left_s: seconds until it runs out, by the device's clock."""

    owner: str
    reason: str
    left_s: float
    token: int

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.owner}{why}, for {self.left_s:.0f} s more"


def whoami() -> str:
    """This process as a holder's name: user, machine and process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} process {os.getpid()}"


def new_owner() -> str:
    """A nonce for one farm process; all its sessions share it."""
    return secrets.token_hex(8)


class Lease:
    """The lease of one device, over a connected transport. nonce: see `new_owner`."""

    def __init__(
        self, transport: Transport, root: str, *, nonce: str, owner: str = "", reason: str = "", timeout_s: float = 10.0
    ) -> None:
        self._transport, self._root, self._timeout_s = transport, root, timeout_s
        self._nonce, self._owner, self._reason = nonce, _line(owner or whoami()), _line(reason)
        self.token: int | None = None

    def take(self, wait_s: float, *, ttl_s: float = TTL_S, stopped: Callable[[], bool] = lambda: False) -> None:
        """Become the holder, waiting up to `wait_s` seconds for another one to end.

        Raises DeviceLeased naming the holder, at once if its lease lasts longer than we may wait.
        """
        deadline, pause = Deadline(max(wait_s, 0.001)), threading.Event()
        while True:
            answer = self._ask("take", ttl_s)
            if answer[0] == "mine":
                self.token = int(answer[1])
                return
            holder = _holder(answer)
            # A running farm renews its lease, so a short one tells nothing about its end; a long one (a person's) does.
            hopeless = holder is not None and holder.left_s > max(deadline.left_s, 10 * TTL_S)
            if deadline.over or hopeless or stopped():
                who = holder or "somebody else"
                raise DeviceLeased(f"the device is leased by {who}; wait, or end that with: farm lease break")
            pause.wait(min(POLL_S, deadline.left_s, max(0.1, holder.left_s if holder else 0.1)))

    def renew(self, ttl_s: float = TTL_S) -> None:
        """Check that we still are the holder, and stay it for `ttl_s` seconds. Raises LeaseLost."""
        self._must_be_mine(self._ask("check", ttl_s))

    def guard_argv(self, ttl_s: float) -> tuple[str, ...]:
        """`renew` as a command that runs on the device; it says `mine …` if all is well."""
        return self._argv("check", ttl_s)

    def guard_refused(self, said: str) -> None:
        """Raise what a guard's answer other than `mine …` means."""
        self._must_be_mine(_answer(said))

    def _must_be_mine(self, answer: list[str]) -> None:
        if answer[0] != "mine":
            raise LeaseLost(f"another farm owns the device now: {_holder(answer) or 'the lease was broken'}")

    def free(self) -> None:
        """Give it back, if it is still ours."""
        if self.token is not None:
            self._ask("free", 0)
            self.token = None

    def break_(self) -> Holder | None:
        """End whoever's lease it is; who that was."""
        return _holder(self._ask("break", 0))

    def show(self) -> Holder | None:
        """Who holds it now."""
        return _holder(self._ask("show", 0))

    def _argv(self, op: str, ttl_s: float) -> tuple[str, ...]:
        words = (op, self._nonce, str(int(ttl_s + 0.999)), self._owner, self._reason, str(self.token or 0))
        return ("sh", "-c", _SCRIPT, "sh", self._root, *words)

    def _ask(self, op: str, ttl_s: float) -> list[str]:
        done = self._transport.run(self._argv(op, ttl_s), self._timeout_s)
        if done.exit_status != 0:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
            if done.exit_status == 95 and "space" in said.lower():
                raise NoSpace(f"the device's disk is full, not even a lease can be written there: {said}")
            raise TransferFailed(f"the lease cannot be kept on the device ({done.exit_status}): {said}")
        return _answer(done.stdout.decode(errors="replace"))


def _answer(said: str) -> list[str]:
    lines = said.splitlines()
    if lines and lines[0].startswith("error "):
        if "no space" in said.lower():
            raise NoSpace(f"the device's disk is full, not even a lease can be written there: {said[6:300]}")
        raise TransferFailed(f"the lease cannot be kept on the device: {said[6:300]}")
    if not lines or lines[0].split()[:1] not in (["mine"], ["held"], ["raced"], ["free"]):
        raise DeviceLost("the device gave no answer about its lease", output=repr(lines[:3]))
    return [*lines[0].split(), *[*lines[1:], "", ""][:2]]


def _holder(answer: list[str]) -> Holder | None:
    if answer[0] != "held":
        return None
    token, until, now, owner, reason = answer[1:6]
    return Holder(owner=owner or "nobody", reason=reason, left_s=max(0.0, float(until) - float(now)), token=int(token))


def _line(text: str) -> str:
    """One line of printable text."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]
