"""The command line: the only printing and the only sys.exit. One file per subcommand, named like it.

stdout is the result the user asked for; stderr is progress, logs and problems. Heavy modules are imported inside the
commands that need them, so that `farm --version` and `farm --help` stay fast.
"""

from __future__ import annotations

import os
import sys

from farm import __version__


def main() -> None:
    """Run the command line of this process and exit with its code."""
    # Answered before click is imported: scripts ask for the version often, and it is most of that call's time.
    if sys.argv[1:] == ["--version"]:
        print(f"farm {__version__}")
        return
    # numpy's OpenBLAS starts a thread per processor, each of which would spin for a tenth of a second looking for work:
    # as much processor time as the rest of a small sweep, taken from the agents. 2^4 cycles let them sleep at once.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    from farm.cli._app import run

    sys.exit(run(sys.argv[1:]))
