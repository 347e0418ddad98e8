"""Put a real run into the README: sweep demo models on two GPU vendors, keep the matrix, render it into the page.

.venv/bin/python tools/refresh_readme.py            a new run, docs/sample/matrix.json, README.md, docs/commands.md
.venv/bin/python tools/refresh_readme.py --render   only render the kept matrix again (after a change of the report)
.venv/bin/python tools/refresh_readme.py --check    exit 1 when README.md does not show the kept matrix
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SAMPLE = ROOT / "docs" / "sample" / "matrix.json"
MODELS = ("healthy_cnn", "embedder_zero_in_fp16", "sum_also_an_output")
"""Of demo/: one that is right everywhere, one that FP16 breaks, one that a kernel breaks."""
BEGIN, END = "<!-- matrix: written by tools/refresh_readme.py -->", "<!-- /matrix -->"


def new_run() -> None:
    """Sweep MODELS on llvmpipe and SwiftShader, two vendors in one box, and keep the matrix."""
    from farm import codec
    from farm.sweep import sweep

    sys.path.insert(0, str(ROOT))
    from tests.lab.gpus import gpus

    found = gpus()
    if set(found) != {"llvmpipe", "swiftshader"}:
        sys.exit(f"needs llvmpipe and SwiftShader, found {sorted(found)}; make lab-gpus brings them")
    with tempfile.TemporaryDirectory(prefix="farm-readme-") as folder:
        inventory = Path(folder) / "inventory.yaml"
        lines = ["devices:"]
        for name, icd in sorted(found.items()):
            lines.append(f"  - {{id: {name}-box, transport: local, env: {{VK_ICD_FILENAMES: {icd}}}}}")
        inventory.write_text("\n".join(lines) + "\n")
        models = [ROOT / "demo" / f"{name}.tflite" for name in MODELS]
        result = sweep(models, inventory=inventory, out=Path(folder) / "runs")
        # Logs and facts of the machine that ran it say nothing to a reader and may name its folders.
        cells = tuple(dataclasses.replace(cell, log_tail="") for cell in result.matrix.cells)
        devices = tuple(dataclasses.replace(device, facts={}) for device in result.matrix.devices)
        codec.write_whole(
            SAMPLE, codec.to_json(dataclasses.replace(result.matrix, cells=cells, devices=devices), indent=1)
        )


def block() -> str:
    """Return what stands between the marks: the kept matrix as `farm report` prints it in 100 columns."""
    from farm import codec
    from farm.report import render
    from farm.report.matrix import Matrix

    text = render(codec.from_json(SAMPLE.read_bytes(), Matrix), "terminal", width=100)
    return f"{BEGIN}\n\n```text\n{shortened(text).rstrip()}\n```\n\n{END}"


def shortened(text: str) -> str:
    """Keep the matrix, the first finding and the summary of a terminal report, and say how much is left out."""
    head, *findings = text.split("\n* ")
    if len(findings) < 2:
        return text
    summary = findings[-1].rpartition("\n\n")[2]
    return f"{head}\n* {findings[0].rstrip()}\n\n[{len(findings) - 1} more in this run]\n\n{summary}"


def page() -> str:
    """Return README.md with the block in its place."""
    if not SAMPLE.is_file():
        sys.exit("docs/sample/matrix.json is missing; tools/refresh_readme.py makes it from a real run")
    text = README.read_text()
    head, rest = text.split(BEGIN)
    return head + block() + rest.split(END)[1]


def main() -> None:
    """Do what the arguments say."""
    if "--check" in sys.argv[1:]:
        if README.read_text() != page():
            sys.exit("README.md does not show docs/sample/matrix.json; run tools/refresh_readme.py --render")
        return
    if "--render" not in sys.argv[1:]:
        new_run()
    README.write_text(page())
    subprocess.run([sys.executable, str(ROOT / "tools" / "command_pages.py")], check=True)


if __name__ == "__main__":
    main()
