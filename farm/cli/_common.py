"""What several commands share: option types, where the inventory is, JSON on stdout, the report's colours and width."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from farm.discovery import Discovered
    from farm.inventory import Inventory
    from farm.plan import PlannedDevice
    from farm.report.matrix import Matrix
    from farm.transports.gateway import Gateways

FILE = click.Path(path_type=Path, readable=False)
"""A file to read, as it was named: what is wrong with it is told by whoever opens it, all problems together."""

inventory_option = click.option(
    "--inventory",
    "inventory_path",
    type=FILE,
    metavar="FILE",
    help="The inventory of devices and models.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of text.")
verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Tell each step on stderr; full tracebacks of faults."
)


class Names(click.ParamType[tuple[str, ...]]):
    """A comma list of names: `cpu,gpu`. Given several times the lists are joined."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if not all(names):
            self.fail(f"'{value}' has an empty name in it", param, ctx)
        return names


class InputShape(click.ParamType[tuple[str, tuple[int, ...]]]):
    """NAME=1,8 → (NAME, (1, 8)); NAME is a signature's input name or inN."""

    name = "shape"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, tuple):
            return value
        # The last '=': tensor names may hold one themselves.
        name, separator, text = str(value).rpartition("=")
        try:
            shape = tuple(int(part) for part in text.replace("x", ",").split(",")) if text.strip() else ()
        except ValueError:
            shape = (0,)
        if not separator or not name or not shape or min(shape) < 1:
            self.fail(f"'{value}' is not NAME=1,8 (a name or inN, then positive sizes)", param, ctx)
        return name, shape


def flatten(lists: tuple[tuple[str, ...], ...]) -> list[str] | None:
    """Join the lists of a repeated comma option, first mention first; None when it was not given."""
    return list(dict.fromkeys(name for names in lists for name in names)) or None


def shapes_of(pairs: tuple[tuple[str, tuple[int, ...]], ...]) -> dict[str, tuple[int, ...]]:
    """Return name → shape. Raises InvalidInput when one name is given two shapes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in pairs:
        if shapes.setdefault(name, shape) != shape:
            raise InvalidInput(Problem(message=f"--input-shape gives '{name}' two shapes", cure="give one"))
    return shapes


def open_inventory(path: Path | None) -> Inventory:
    """Load the named inventory; without one, ./inventory.yaml if it is there, else this machine alone."""
    from farm.inventory import default_inventory, load_inventory

    if path is not None:
        return load_inventory(path)
    here = Path("inventory.yaml")
    return load_inventory(here) if here.is_file() else default_inventory()


def every_device(path: Path | None, gateways: Gateways) -> Discovered:
    """Return the devices of the inventory, its hosts' phones among them; without one, what can be found from here."""
    from farm.discovery import discover, expand_hosts

    if path is None and not Path("inventory.yaml").is_file():
        return discover()
    return expand_hosts(open_inventory(path), gateways)


def one_device(name: str, path: Path | None, gateways: Gateways) -> PlannedDevice:
    """Return the device called `name`. Raises InvalidInput naming those there are."""
    found = {f.device.id: f.device for f in every_device(path, gateways).found}
    if name not in found:
        there = ", ".join(sorted(found))
        raise InvalidInput(Problem(message=f"no device '{name}' in the inventory", cure=f"there are: {there}"))
    return found[name]


def print_json(value: Any) -> None:
    """Write strict JSON (no NaN, sorted keys) and a newline to stdout."""
    from farm import codec

    sys.stdout.write(codec.to_json(value).decode() + "\n")


def show(text: str) -> None:
    """Write a finished text to stdout with exactly one newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def show_matrix(matrix: Matrix) -> None:
    """Write the terminal report to stdout: as wide as the terminal (100 columns in a file), coloured on one only."""
    from farm.report import render

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns
    show(render(matrix, "terminal", width=max(width, 60), colour=terminal and not os.environ.get("NO_COLOR")))
