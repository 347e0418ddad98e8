"""farm trust: accept the key of an SSH host, after a person has looked at its fingerprint."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from farm.cli._common import show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm trust mac-mini.local
  farm trust lab@10.0.0.7:2222 --fingerprint SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDvNtnEmeJZQg6OBS4

On the host itself the fingerprint is shown by: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub
A key that differs from the one known is always refused."""


@click.command(epilog=EPILOG)
@click.argument("host", metavar="HOST")
@click.option("--fingerprint", metavar="SHA256:...", help="Accept only this key, without asking.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds to wait.")
def command(host: str, fingerprint: str | None, timeout: float) -> None:
    """Ask HOST (an alias of ssh_config, or user@name:port) for its key and write it to known_hosts."""
    from farm.transports.base import Deadline
    from farm.transports.ssh_connect import known_fingerprints, known_hosts_file, offered_key

    key = offered_key(host, Deadline(timeout))
    known = known_fingerprints(host)
    if key.fingerprint in known:
        show(f"{key.name} is trusted already: {key.kind} {key.fingerprint}")
        return
    if known:
        raise InvalidInput(
            Problem(
                message=f"the key of {key.name} has changed: known is {', '.join(known)}, offered is {key.fingerprint}",
                cure=f"if the host was reinstalled, remove the old one first: ssh-keygen -R '{key.name}'",
            )
        )
    if fingerprint is not None and fingerprint != key.fingerprint:
        raise InvalidInput(
            Problem(message=f"{key.name} offers {key.kind} {key.fingerprint}, not {fingerprint}; nothing was written")
        )
    if fingerprint is None:
        print(f"{key.name} offers the key\n  {key.kind} {key.fingerprint}", file=sys.stderr)
        if not sys.stdin.isatty():
            raise InvalidInput(
                Problem(
                    message="nobody is here to compare the fingerprint",
                    cure=f"compare it on the host, then: farm trust {host} --fingerprint {key.fingerprint}",
                )
            )
        click.confirm("Is that the host's own fingerprint?", abort=True, err=True)
    file = known_hosts_file(host)
    _append(file, key.line)
    show(f"{key.name} is trusted now: {key.kind} {key.fingerprint} (written to {file})")


def _append(file: Path, line: str) -> None:
    """Add a line to known_hosts, which is made for its owner alone."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "r+b") as f:
            f.seek(0, os.SEEK_END)
            torn = f.tell() > 0
            if torn:
                f.seek(-1, os.SEEK_END)
                torn = f.read(1) != b"\n"
            f.write((b"\n" if torn else b"") + line.encode() + b"\n")
    except OSError as e:
        raise InvalidInput(Problem(message=f"cannot be written: {e.strerror or e}", file=str(file))) from e
