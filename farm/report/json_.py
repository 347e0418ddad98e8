"""The matrix as matrix.json: strict JSON, sorted keys; and its JSON Schema."""

from __future__ import annotations

from typing import Any

import msgspec

from farm import codec
from farm.report.value import Matrix

SCHEMA = "schemas/matrix.schema.json"
"""Where the schema travels inside the package; `python -m tests.report.test_matrix` writes it anew."""


def render(matrix: Matrix) -> str:
    """Return matrix.json's text. The same matrix always gives the same bytes."""
    return codec.to_json(matrix, indent=2).decode()


def schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of matrix.json from the dataclasses."""
    made = msgspec.json.schema(Matrix)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "farm matrix.json",
        "description": "One run of farm: every planned cell with its verdict and evidence.",
        **made,
    }


def schema_text() -> str:
    """The schema as it is shipped."""
    return codec.to_json(schema(), indent=2).decode()
