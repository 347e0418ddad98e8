"""The click group, its lazily found commands, and the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence

import click

from farm import __version__
from farm.errors import FarmError, InvalidInput

HELP = """Find out whether a LiteRT (.tflite) model computes the right numbers on every GPU you ship to.

\b
Examples:
  farm sweep model.tflite                     this machine: cpu, gpu, gpu-fp32
  farm sweep --inventory inventory.yaml       every device and model of an inventory
  farm report runs/20250101T000000-ab12cd     show a finished run again
  farm doctor                                 is this machine ready?

Exit codes: 0 nothing that counts failed; 1 a model failed; 2 bad usage, nothing was run; 3 something could not be
judged (a device lost, no valid reference)."""


class FarmGroup(click.Group):
    """Commands are the modules of this folder that hold a `command`; adding one is adding a file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        import farm.cli

        names = (m.name for m in pkgutil.iter_modules(farm.cli.__path__) if not m.name.startswith("_"))
        return sorted(name.replace("_", "-") for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"farm.cli.{cmd_name.replace('-', '_')}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"farm/cli/{cmd_name}.py: `command` is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if ctx.resilient_parsing or not args or self.get_command(ctx, args[0]):
                raise
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"the nearest one is '{close[0]}'" if close else "farm --help lists them"
            raise click.UsageError(f"there is no command '{args[0]}'; {hint}", ctx) from error


@click.group(cls=FarmGroup, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="farm", message="%(prog)s %(version)s")
def app() -> None:
    """Hold the commands."""


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; no exception leaves but SystemExit from the interpreter itself."""
    # `>&-` and some services start programs without these streams; what is said then is for nobody.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # Tables hold characters that a C or Latin-1 terminal lacks; a report must never die of that.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    try:
        code = app.main(args=list(argv), prog_name="farm", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return int(error.exit_code)
    except click.ClickException as error:
        return usage(error)
    except InvalidInput as error:
        for problem in error.problems:
            say(str(problem))
        return error.exit_code
    except FarmError as error:
        say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        say("stopped.")
        return 130
    except BrokenPipeError:
        # The reader of our pipe left (`farm report … | head`): nobody to tell, and no traceback at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if isinstance(error, OSError) and stdout_is_broken():
            say(f"stdout cannot be written: {error.strerror or error}")
            return 3
        if "-v" in argv or "--verbose" in argv:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        say(
            f"a fault of farm itself: {type(error).__name__}: {error} "
            f"({os.path.basename(where.filename)}:{where.lineno}). "
            "Please report it with the output of the same command and -v."
        )
        return 3


def stdout_is_broken() -> bool:
    """Whether stdout takes no more (a full disk behind `> file`); what waits for it is dropped then."""
    try:
        sys.stdout.write("\n")  # nothing may be waiting for a flush to fail on
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def usage(error: click.ClickException) -> int:
    """Print click's complaint as one sentence with the way to the help, and return its code (2 for usage)."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return int(error.exit_code)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "farm"
    say(f"{error.format_message().rstrip('.')} ({path} --help tells more)")
    return int(error.exit_code)


def say(sentence: str) -> None:
    """Write one problem to stderr; where that cannot be written the exit code must do."""
    with contextlib.suppress(OSError):
        print(f"farm: {sentence}", file=sys.stderr)
