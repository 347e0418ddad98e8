"""farm policy: what an app should do on which GPU, from one run's matrix."""

from __future__ import annotations

from pathlib import Path

import click

from farm.cli._common import print_json, show

EPILOG = """\b
Examples:
  farm policy embedder --run runs/20250101T000000Z-ab12cd > policy.json
  farm policy embedder --run runs/20250101T000000Z-ab12cd --page
  farm policy embedder --run runs/20250101T000000Z-ab12cd --runtime litert-2.3.0

\b
A GPU and driver get an accelerator only where everything that ran there passed; everything else gets the CPU.
The digest binds the policy to the cells it rests on."""


@click.command(epilog=EPILOG)
@click.argument("model")
@click.option(
    "--run",
    "run",
    type=click.Path(path_type=Path),
    required=True,
    metavar="RUN",
    help="A run folder or a matrix.json.",
)
@click.option("--runtime", metavar="NAME", help="Of which runtime, where the run has several.")
@click.option("--page", "as_page", is_flag=True, help="Print one Markdown page for people instead of JSON.")
def command(model: str, run: Path, runtime: str | None, as_page: bool) -> None:
    """Print the delegate policy of MODEL: GPU and driver to accelerator and precision, unknown to CPU."""
    from farm.policy import make_policy, page
    from farm.report.read import read_matrix

    made = make_policy(read_matrix(run), model, runtime=runtime)
    if as_page:
        show(page(made))
    else:
        print_json(made)
