"""Shared by every test: where the shared material is, and skips that FARM_TEST_NO_SKIP=1 turns into failures."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

CHECKOUT = Path(__file__).resolve().parents[1]

# One profile everywhere: the same examples on every run and machine, and no deadline on a shared two-core box.
settings.register_profile(
    "farm",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("farm")


def shared_folder() -> Path | None:
    """The shared material (cases, models): FARM_SHARED, or ../shared beside the checkout; None when absent."""
    if given := os.environ.get("FARM_SHARED"):
        if not Path(given).is_dir():
            raise FileNotFoundError(f"FARM_SHARED names {given}, which is not a folder")
        return Path(given)
    beside = CHECKOUT.parent / "shared"
    return beside if beside.is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared material's folder; skips by name where there is none."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("no shared material (FARM_SHARED or ../shared)")
    return folder


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tester's own settings out: no colours, no inherited run folder or inventory of theirs."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    monkeypatch.delenv("VK_DRIVER_FILES", raising=False)
    # Nobody listens there: a sweep without inventory must not find the phones of whoever runs the tests.
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "9")


# A skip for these reasons stays a skip under FARM_TEST_NO_SKIP: nothing that setup could install would lift it.
ALLOWED = ("only on macOS", "only on Linux on arm64")


def allowed(reason: str) -> bool:
    """Whether a skip may stay one when skips are failures."""
    if "no shared material" in reason:
        return shared_folder() is None
    return reason.startswith(ALLOWED)


def skip_reason(report: Any) -> str:
    """The words a test was skipped with."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("FARM_TEST_NO_SKIP") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = skip_reason(report)
        if not allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped where FARM_TEST_NO_SKIP=1 allows no skip: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module skipped as a whole (importorskip, allow_module_level) counts as a skip too."""
    report = yield
    if os.environ.get("FARM_TEST_NO_SKIP") == "1" and report.outcome == "skipped":
        reason = skip_reason(report)
        if not allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped where FARM_TEST_NO_SKIP=1 allows no skip: {reason}"
    return report
