"""farm doctor: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import dataclasses

import click

from farm.cli._common import json_option, print_json, show

EPILOG = """\b
Examples:
  farm doctor
  farm doctor --json

Each line is ok, warn or fail with its cure. Exit code 0 unless a line says fail (then 3)."""


@click.command(epilog=EPILOG)
@json_option
def command(as_json: bool) -> int:
    """Check this machine: Python, LiteRT, the agent, GPU adapters, adb, folders, disk."""
    from farm.doctor import examine

    checks = examine()
    if as_json:
        print_json([dataclasses.asdict(check) for check in checks])
    else:
        lines = []
        for check in checks:
            lines.append(f"{check.state:<5} {check.name:<14} {check.found}")
            if check.cure:
                lines.append(f"      {'':<14} -> {check.cure}")
        show("\n".join(lines))
    return 3 if any(check.state == "fail" for check in checks) else 0
