"""report.html in a real headless browser: it runs clean, asks for nothing, fits a phone, and opens evidence."""

from __future__ import annotations

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from farm.report import render
from tests.report import sample
from tests.report.test_formats import hostile

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome on the PATH")

# The report's own policy forbids foreign scripts, so it is looked at from outside: a frame of a phone's width.
HARNESS = """<!doctype html><meta charset="utf-8"><body>
<iframe id="f" src="report.html" width="WIDTH" height="844"></iframe>
<pre id="out"></pre><script>
document.getElementById("f").addEventListener("load", () => {
  const frame = document.getElementById("f").contentWindow, d = frame.document, root = d.documentElement;
  const shown = (id) => frame.getComputedStyle(d.getElementById(id)).display;
  const out = {
    scroll: Math.max(root.scrollWidth, d.body.scrollWidth), width: root.clientWidth,
    cells: d.querySelectorAll("td[data-verdict]").length, sheets: d.querySelectorAll(".sheet").length,
    resources: frame.performance.getEntriesByType("resource").map((e) => e.name),
    filter: !d.querySelector("form.filter").hidden, count: d.getElementById("f-count").textContent,
    scripts: d.scripts.length, before: shown("c0"),
  };
  const pick = (id, value) => {
    const e = d.getElementById(id); e.value = value; e.dispatchEvent(new frame.Event("input"));
  };
  pick("f-verdict", "error"); out.errors = d.getElementById("f-count").textContent;
  pick("f-verdict", ""); pick("f-model", "POSE"); out.pose = d.getElementById("f-count").textContent;
  pick("f-model", "");
  frame.location.hash = "#c0";
  out.after = shown("c0");
  out.sheetFits = d.getElementById("c0").scrollWidth <= root.clientWidth;
  document.getElementById("out").textContent = JSON.stringify(out);
});
</script>"""


@dataclass
class Site:
    folder: Path
    url: str
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    requests: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            requests.append(self.path)

        def log_error(self, format: str, *args: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield Site(folder=tmp_path, url=f"http://127.0.0.1:{server.server_address[1]}", requests=requests)
        server.shutdown()
        thread.join()


def look(site: Site, page: str, width: int) -> tuple[dict[str, Any], list[str]]:
    """Load `page` in a frame of `width` px; return what the harness saw and what the console said."""
    (site.folder / "report.html").write_text(page, encoding="utf-8")
    (site.folder / "harness.html").write_text(HARNESS.replace("WIDTH", str(width)), encoding="utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-dev-shm-usage", "--enable-logging=stderr",
            "--window-size=1280,900", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={site.folder / 'profile'}",
            "--dump-dom", f"{site.url}/harness.html",
        ],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    found = re.search(r'<pre id="out">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "favicon" not in line]
    return json.loads(html.unescape(found[1])), console


def test_the_page_runs_clean_and_fits_a_phone(site: Site) -> None:
    matrix = sample.sample()
    seen, console = look(site, render(matrix, "html"), 390)
    assert console == []
    assert seen["resources"] == []
    assert {path for path in site.requests if "favicon" not in path} == {"/harness.html", "/report.html"}
    assert seen["scroll"] <= seen["width"] <= 390
    assert seen["cells"] == seen["sheets"] == len(matrix.cells)
    # Our script ran (its hash matches the policy) and filters: ten rows in all, one of them with an error, two of pose.
    assert (seen["filter"], seen["count"], seen["errors"], seen["pose"]) == (True, "10 rows", "1 rows", "2 rows")
    assert (seen["before"], seen["after"], seen["sheetFits"]) == ("none", "block", True)


@pytest.mark.parametrize("text", ["<script>document.title='x'</script>", "long" * 80])
def test_hostile_names_run_nothing_and_do_not_widen_the_page(site: Site, text: str) -> None:
    seen, console = look(site, render(hostile(text), "html"), 390)
    assert console == []
    assert seen["scripts"] == 1
    assert seen["scroll"] <= seen["width"]
