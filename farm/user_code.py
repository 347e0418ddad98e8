"""The user's own Python: `module:function` of a spec, found beside the model, in the working folder, or installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from farm.errors import InvalidInput, Problem


def load_function(name: str, folders: Sequence[Path]) -> Callable[..., Any]:
    """Import `module:function`, looking into `folders` first. This runs the module's code.

    Raises InvalidInput with what went wrong in the user's words: no module, no function, an exception while importing.
    """
    module_name, _, function_name = name.partition(":")
    with _importable(folders):
        try:
            module = importlib.import_module(module_name)
        except Exception as e:  # whatever the user's module raises is about that module, and told as such
            where = ", ".join(str(f) for f in folders)
            raise InvalidInput(
                Problem(
                    message=f"cannot import {module_name!r} of {name!r}: {type(e).__name__}: {e}",
                    cure=f"looked in {where} and in Python's own path",
                )
            ) from e
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InvalidInput(
            Problem(
                message=f"{name!r}: {getattr(module, '__file__', module_name)} has no function {function_name!r}",
                cure="name it as module:function",
            )
        )
    found: Callable[..., Any] = function
    return found


@contextmanager
def _importable(folders: Sequence[Path]) -> Iterator[None]:
    added = [str(f.resolve()) for f in folders]
    before = list(sys.path)
    sys.path[:0] = added
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
