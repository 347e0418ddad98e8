"""farm runtime: the LiteRT bundles that cells can run with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.cli._common import json_option, print_json, show

if TYPE_CHECKING:
    from farm.runtimes import Runtime

EPILOG = """\b
Examples:
  farm runtime list
  farm runtime add ai_edge_litert-2.2.0-cp311-cp311-manylinux_2_27_x86_64.whl
  farm sweep model.tflite --runtime 2.2.0,2.3.0"""

LIST_EPILOG = """\b
Examples:
  farm runtime list
  farm runtime list --json"""

ADD_EPILOG = """\b
Examples:
  farm runtime add ai_edge_litert-2.2.0-cp311-cp311-manylinux_2_27_x86_64.whl
  farm runtime add ./my-build --runtime-version 2.4.0.dev1"""


@click.group(epilog=EPILOG)
def command() -> None:
    """List or add LiteRT runtimes; several versions stand side by side."""


@command.command("list", epilog=LIST_EPILOG)
@json_option
def list_(as_json: bool) -> None:
    """Show every runtime here: version, platform, accelerators, sha256, origin."""
    from farm.runtimes import list_runtimes

    runtimes = list_runtimes()
    if as_json:
        print_json([value_of(runtime) for runtime in runtimes])
        return
    from tabulate import tabulate

    show(
        tabulate(
            [
                (
                    r.name,
                    r.version,
                    r.platform,
                    " ".join(r.accelerators),
                    value_of(r)["sha256"][:16],
                    r.damage or r.origin,
                )
                for r in runtimes
            ],
            headers=("runtime", "version", "platform", "accelerators", "sha256", "origin"),
            disable_numparse=True,
        )
    )


@command.command("add", epilog=ADD_EPILOG)
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--runtime-version", "version", metavar="VERSION", help="Its version, where SOURCE does not say (a folder)."
)
@json_option
def add(source: Path, version: str | None, as_json: bool) -> None:
    """Add the runtime of SOURCE: a wheel, an .aar, a zip or a folder."""
    from farm.runtimes import add_runtime

    added = add_runtime(source, version)
    if as_json:
        print_json([value_of(runtime) for runtime in added])
        return
    for runtime in added:
        words = " ".join(runtime.accelerators) or "no GPU accelerator"
        show(f"{runtime.name} for {runtime.platform} added ({words}).")


def value_of(runtime: Runtime) -> dict[str, Any]:
    """Return a runtime as JSON's own types; sha256 is that of its libLiteRt."""
    return {
        "name": runtime.name,
        "version": runtime.version,
        "platform": runtime.platform,
        "folder": str(runtime.folder),
        "library": runtime.library,
        "sha256": runtime.files[runtime.library][0] if runtime.library in runtime.files else "",
        "accelerators": runtime.accelerators,
        "files": {name: {"sha256": sha256, "size_bytes": size} for name, (sha256, size) in runtime.files.items()},
        "origin": runtime.origin,
        "damage": runtime.damage,
    }
