"""Write docs/commands.md from the commands' own help, so that it cannot go stale; --check tells whether it did."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
HEAD = """# Every command

Written by `tools/command_pages.py` from the commands' own help (`make docs`).
"""


def page() -> str:
    """Return the whole page."""
    import click

    from farm.cli._app import app

    parts = [HEAD]
    context = click.Context(app, info_name="farm", terminal_width=100, max_content_width=100)
    waiting: list[tuple[str, click.Command, click.Context]] = [("farm", app, context)]
    while waiting:
        name, command, ctx = waiting.pop(0)
        parts.append(f"## `{name}`\n\n```text\n{command.get_help(ctx)}\n```\n")
        if isinstance(command, click.Group):
            inner = []
            for sub in command.list_commands(ctx):
                found = command.get_command(ctx, sub)
                assert found is not None
                inner.append((f"{name} {sub}", found, click.Context(found, info_name=sub, parent=ctx)))
            waiting = inner + waiting
    return "\n".join(parts)


def main() -> None:
    """Write the page, or with --check say whether it is what it should be."""
    os.environ["NO_COLOR"] = "1"
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.is_file() or PAGE.read_text() != text:
            sys.exit("docs/commands.md is not what the commands' help says; run make docs")
        return
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
