"""The static site: every link leads somewhere, hostile names stay text, a real browser opens it without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from farm.cli._app import run
from farm.nightly.kept import keep
from farm.report import write_reports
from farm.site import slug
from tests.diff.kit import cell, matrix
from tests.nightly.test_prometheus import night

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
HOSTILE = "<script>alert(1)</script>&\"'/../x"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    runs = tmp_path / "my runs"
    for day, verdict in enumerate(("pass", "fail", "pass"), 1):
        made = matrix(
            [cell(HOSTILE, verdict=verdict, id="a", ms=float(day)), cell("Fine", device="b/c", id="b")],
            run=f"2025010{day}T000000Z-aaaaaa",
        )
        (runs / made.run.id).mkdir(parents=True)
        write_reports(made, runs / made.run.id)
        keep(runs, night(day))
    assert run(["site", "--out", str(runs), "--output", str(tmp_path / "site")]) == 0
    return tmp_path / "site"


def test_every_link_leads_to_a_file(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) == 5
    links = [(page, unquote(link)) for page in pages for link in re.findall(r'href="([^"#]+)"', page.read_text())]
    assert len(links) > 10
    for page, link in links:
        if not link.startswith("data:"):
            assert (page.parent / link).resolve().is_file(), (page, link)


def test_names_stay_text_and_files_stay_inside(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert page.read_text().count("<script>") == 1
    assert {p.parent.name for p in site.rglob("*.html")} == {"site", "models", "devices"}
    assert slug("A") != slug("a") != slug("a/")
    assert slug("")
    assert slug("..") not in ("", "..", ".")


def test_the_index_has_nights_and_the_roll_up_by_gpu(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert text.index("20250103T000000Z-aaaaaa") < text.index("20250101T000000Z-aaaaaa")
    assert "Mali-G715" in text
    model = (site / "models" / f"{slug(HOSTILE)}.html").read_text()
    assert re.sub(r"<[^>]+>", "", model).count("✓✗✓") == 1
    assert "latency in ms: 1 to 3, last 3" in model


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome on the PATH")
def test_a_browser_opens_it_from_the_disk_without_complaint_and_the_filter_works(site: Path, tmp_path: Path) -> None:
    index = site / "index.html"
    probe = (
        "<script>const b=document.querySelector('[data-filter]');b.value='fine';b.dispatchEvent(new Event('input'));"
    )
    probe += "document.title=[...document.querySelectorAll('tbody tr')].filter(r=>!r.hidden).length+' rows';</script>"
    index.write_text(index.read_text().replace("</body>", f"{probe}</body>"))
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--v=0", "--dump-dom", index.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    assert "<title>1 rows</title>" in done.stdout
    assert "CONSOLE" not in done.stderr
