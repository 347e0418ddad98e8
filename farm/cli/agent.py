"""farm agent: the small native program that runs cells."""

from __future__ import annotations

import click

from farm.cli._common import json_option, print_json, show
from farm.errors import InvalidInput, Problem

EPILOG = """\b
Examples:
  farm agent build
  farm agent build --target android-arm64"""

BUILD_EPILOG = """\b
Examples:
  farm agent build
  farm agent build --target linux-aarch64 --json

Sweeps build what they need by themselves; this shows or forces it beforehand. Other machines' targets need zig
(pip install 'litert-farm[zig]')."""


@click.group(epilog=EPILOG)
def command() -> None:
    """Build the native agent."""


@command.command("build", epilog=BUILD_EPILOG)
@click.option(
    "--target",
    metavar="PLATFORM",
    help="linux-x86_64, linux-aarch64, macos-arm64, android-arm64, ... (default: this machine).",
)
@json_option
def build(target: str | None, as_json: bool) -> None:
    """Build the agent for a platform, or find the one already built, and print its path."""
    from farm.agents import TARGETS, agent_binary, agent_digest
    from farm.runtimes import host_platform

    platform = target or host_platform()
    if target is not None and target not in TARGETS:
        known = ", ".join(sorted(TARGETS))
        raise InvalidInput(Problem(message=f"no agent can be built for '{target}'", cure=f"targets: {known}"))
    binary = agent_binary(platform)
    if as_json:
        print_json(
            {
                "platform": platform,
                "path": str(binary),
                "sha256": agent_digest(binary),
                "size_bytes": binary.stat().st_size,
            }
        )
    else:
        show(str(binary))
