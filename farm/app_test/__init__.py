"""Tests that run a model inside the app: golden inputs, a Kotlin instrumented test, a Swift XCTest.

    MODEL ──▶ export_app_test ──▶ DIR (golden inputs + sources) ──▶ the app's test run ──▶ dump ──▶ farm compare

The app has its own runtime, process and GPU rights; only a test inside it sees what users get. The dumps are in the
folder format of tensors.py.
"""

from farm.app_test.export import Exported, export_app_test

__all__ = ["Exported", "export_app_test"]
