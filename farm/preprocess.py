"""The user's own files (pictures, WAV, text, arrays) as inputs of a model, by the spec's `preprocess:`.

    FOLDER/cat.png           one input set per file, named by it: feeds the input that `preprocess` or its sort names
    FOLDER/case7/left.png    one input set per folder: files named by the input (or inN) they feed
    one file                 one input set

Pixel values are 0..1 before mean and std (`values: 0..255` for the other convention); where the spec says neither, the
model's own metadata decide, and a quantised input takes the pixels as they are. Every set says how it was made.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.arrays import StoredArray, listed, open_arrays
from farm.errors import InvalidInput, Problem
from farm.graph import GraphFacts, InputFacts
from farm.input_roles import meaning
from farm.inputs import HIDDEN, UserInputs, fit, store, unknown_keys
from farm.media import PICTURES, SOUNDS, TEXTS, picture, sound, tokens
from farm.tflite import Model, Signature
from farm.user_code import load_function

ARRAYS = (".npz", ".safetensors")
READABLE = (*PICTURES, *SOUNDS, *TEXTS, ".npy", *ARRAYS)
Rules = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """One array of one set, and how it was made."""

    array: np.ndarray
    dtype: str
    how: str


def fit_files(
    path: Path, model: Model, signature: Signature, facts: GraphFacts, rules: Rules, folders: Sequence[Path]
) -> UserInputs:
    """Read a file or folder as the input sets of one signature. folders: where functions and tokenizers are looked for.

    What is wrong with a file is a problem of the result, each naming it; like inputs.fit, whose checks come after.
    """
    return _Reader(path, model, signature, facts, rules, folders).fitted()


class _Reader:
    def __init__(
        self, path: Path, model: Model, signature: Signature, facts: GraphFacts, rules: Rules, folders: Sequence[Path]
    ) -> None:
        self.path, self.model, self.signature, self.facts = path, model, signature, facts
        self.rules, self.folders = rules, folders
        self.problems: list[Problem] = []
        self.stored: dict[str, StoredArray] = {}
        self.how: dict[str, str] = {}

    def fitted(self) -> UserInputs:
        names = [f.name for f in self.facts.inputs]
        for name in self.rules:
            if name != "*" and self._named(name) is None:
                self._problem(
                    f"'preprocess' names {name!r}, which is no input", f"inputs: {listed(names)}, or in0, in1, …"
                )
        for set_name, file, feeds in self._files():
            try:
                made = self._one(file, feeds)
            except InvalidInput as e:
                self.problems += e.problems
                continue
            for name, one in made.items():
                key = f"{set_name}/{name}" if set_name else name
                if key in self.stored:
                    self._problem(f"two files give input {name!r} of set {set_name!r}", "keep one")
                self.stored[key] = StoredArray(dtype=one.dtype, shape=one.array.shape, read=lambda a=one.array: a)  # type: ignore[misc]
                self.how[key] = one.how
        if self.problems:
            return UserInputs(problems=tuple(self.problems), used=frozenset(self.stored))
        if not self.stored:
            self._problem(
                f"holds no file that farm reads as input ({', '.join(READABLE)})", "give pictures, WAV, text or .npz"
            )
            return UserInputs(problems=tuple(self.problems))
        fitted = fit(self.path, self.stored, self.model, self.signature, self.facts)
        strange = unknown_keys(self.path, self.stored, fitted.used, names)
        if strange:
            return UserInputs(problems=(*fitted.problems, *strange), used=fitted.used)
        sets = tuple(
            dataclasses.replace(
                one,
                recipes=tuple(
                    self._recipe(one.name, f.name, r) for f, r in zip(self.facts.inputs, one.recipes, strict=True)
                ),
            )
            for one in fitted.sets
        )
        return dataclasses.replace(fitted, sets=sets)

    def _recipe(self, set_name: str, name: str, plain: str) -> str:
        how = self.how.get(f"{set_name}/{name}") or self.how.get(name)
        return f"{plain}: {how}" if how else plain

    def _problem(self, message: str, cure: str | None = None, path: Path | None = None) -> None:
        self.problems.append(Problem(message=message, file=str(path or self.path), cure=cure))

    def _named(self, name: str) -> InputFacts | None:
        """An input by its own name, or as inN."""
        for number, f in enumerate(self.facts.inputs):
            if name in (f.name, f"in{number}"):
                return f
        return None

    def _files(self) -> Iterator[tuple[str, Path, str | None]]:
        """(set name, file, input it feeds or None to find out)."""
        if not os.path.isdir(self.path):
            yield "" if self.path.suffix.lower() in ARRAYS else self.path.stem, self.path, None
            return
        taken: set[str] = set()
        for entry in sorted(self.path.iterdir()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if self._whole_folders():
                    yield entry.name, entry, None
                    continue
                for file in sorted(entry.iterdir()):
                    if not file.name.startswith(".") and self._readable(file):
                        yield entry.name, file, file.stem
            elif self._readable(entry):
                name = entry.stem if entry.stem not in taken else entry.name
                taken.add(name)
                yield name, entry, None

    def _whole_folders(self) -> bool:
        return "function" in self.rules.get("*", {})

    def _readable(self, file: Path) -> bool:
        """Files of sorts farm does not know are the user's own business, unless a function reads them."""
        return file.suffix.lower() in READABLE or any("function" in r for r in self.rules.values())

    def _one(self, file: Path, feeds: str | None) -> dict[str, _Made]:
        whole = self.rules.get("*", {}).get("function")
        target = None
        if feeds is not None:
            target = self._named(feeds)
            if target is None:
                names = [f.name for f in self.facts.inputs]
                raise InvalidInput(
                    Problem(
                        message=f"is named after no input ({feeds!r})",
                        file=str(file),
                        cure=f"inputs: {listed(names)}, or inN",
                    )
                )
        if whole is not None and target is None:
            return self._by_function(whole, file, None)
        suffix = file.suffix.lower()
        if suffix in ARRAYS:
            return self._arrays(file)
        target = target or self._target(file)
        rule = self._rule(target)
        if "function" in rule:
            return self._by_function(rule["function"], file, target)
        if suffix in PICTURES:
            return {target.name: self._picture(file, target, rule)}
        if suffix in SOUNDS:
            return {target.name: self._sound(file, target, rule)}
        if suffix in TEXTS:
            return self._text(file, target, rule)
        if suffix == ".npy":
            try:
                array = np.load(file, allow_pickle=False)
            except (OSError, ValueError, EOFError) as e:
                raise InvalidInput(Problem(message=f"cannot be read as .npy: {e}", file=str(file))) from e
            return {target.name: self._array(array, target, rule, file.name)}
        raise InvalidInput(
            Problem(
                message=f"is none of {', '.join(READABLE)}", file=str(file), cure="give a preprocess function for it"
            )
        )

    def _rule(self, target: InputFacts) -> Mapping[str, Any]:
        for name, rule in self.rules.items():
            if name != "*" and self._named(name) is target:
                return rule
        return self.rules.get("*", {})

    def _target(self, file: Path) -> InputFacts:
        """The input a lone file feeds: the only one, the one the spec has rules for, or the one of its sort."""
        inputs = self.facts.inputs
        if len(inputs) == 1:
            return inputs[0]
        named = [f for f in (self._named(n) for n in self.rules if n != "*") if f is not None]
        sorts = {f.name: meaning(self.model, self.signature, f).role for f in (named if len(named) > 1 else inputs)}
        if len(named) == 1:
            return named[0]
        suffix = file.suffix.lower()
        role = "image" if suffix in PICTURES else "sound" if suffix in SOUNDS else "ids" if suffix in TEXTS else None
        fitting = [f for f in inputs if sorts.get(f.name) == role]
        if len(fitting) == 1:
            return fitting[0]
        raise InvalidInput(
            Problem(
                message=f"which of the inputs {listed(f.name for f in inputs)} it feeds is not clear",
                file=str(file),
                cure="name the input under 'preprocess', or put it into a folder per set, named after the input",
            )
        )

    # --- each sort of file ---

    def _picture(self, file: Path, target: InputFacts, rule: Mapping[str, Any]) -> _Made:
        shape = target.shape[1:] if len(target.shape) == 4 else target.shape
        layout = rule.get("layout") or _layout(shape)
        if len(shape) != 3 or layout is None:
            raise InvalidInput(
                Problem(
                    message=f"input {target.name!r} with shape {list(target.shape)} is no picture's",
                    file=str(file),
                    cure="give 'layout: nhwc' or 'nchw', or a preprocess function",
                )
            )
        channels = shape[2] if layout == "nhwc" else shape[0]
        asked = tuple(rule["resize"]) if "resize" in rule else (shape[0:2] if layout == "nhwc" else shape[1:3])
        pixels = picture(file, channels=channels, size=(asked[0], asked[1]))
        values, how = _normalised(pixels, target, rule, file)
        if layout == "nchw":
            values = np.moveaxis(values, -1, -3)
        made = values[None] if len(target.shape) == 4 else values
        return _typed(made, target, rule, f"{asked[0]}x{asked[1]}, {layout}, {how}", direct=how == AS_THEY_ARE)

    def _sound(self, file: Path, target: InputFacts, rule: Mapping[str, Any]) -> _Made:
        heard = sound(file)
        rate = rule.get("sample_rate")
        if rate is not None and rate != heard.rate:
            raise InvalidInput(
                Problem(
                    message=f"is sampled at {heard.rate} Hz, the spec says {rate}",
                    file=str(file),
                    cure=f"resample it: ffmpeg -i {file.name} -ar {rate} OUT.wav",
                )
            )
        channels = heard.samples.shape[1]
        several = channels > 1 and target.shape[-1:] == (channels,)
        samples = heard.samples if several else heard.samples.mean(axis=1)
        want = int(np.prod(target.shape, dtype=np.int64)) // (channels if several else 1)
        have = len(samples)
        samples = samples[:want]
        if have < want:
            samples = np.concatenate([samples, np.zeros((want - have, *samples.shape[1:]))])
        length = f"first {want} of {have} samples" if have > want else f"{have} samples and {want - have} zeros"
        how = f"{heard.rate} Hz, {'as it is' if several or channels == 1 else f'mean of {channels} channels'}, {length}"
        mean, std = _mean_std(rule, file, channels if several else 1)
        if mean is not None:
            samples = (samples - mean) / std
        if target.quantization is None and target.dtype in ("int16", "int8", "uint8", "int32"):
            bits = np.iinfo(target.dtype).bits
            samples = np.rint(samples * (1 << (bits - 1))) + (128 if target.dtype == "uint8" else 0)
            how += f", as {target.dtype}"
        return _typed(samples.reshape(target.shape), target, rule, how)

    def _text(self, file: Path, target: InputFacts, rule: Mapping[str, Any]) -> dict[str, _Made]:
        if "tokenizer" not in rule:
            raise InvalidInput(
                Problem(
                    message=f"text for input {target.name!r} needs a tokenizer",
                    file=str(file),
                    cure=f"preprocess: {{{target.name}: {{tokenizer: vocab.txt}}}}",
                )
            )
        tokenizer = self._beside(rule["tokenizer"])
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise InvalidInput(Problem(message=f"cannot be read as UTF-8: {e}", file=str(file))) from e
        length = target.shape[-1] if target.shape else 1
        seen = tokens(text.strip(), tokenizer, length)
        n = len(seen.ids)
        row = np.array([*seen.ids, *[seen.pad] * (length - n)], np.int64)
        made = {target.name: _typed(_row(row, target), target, rule, f"{n} tokens by {tokenizer.name}")}
        for other in self.facts.inputs:
            if other is target or other.shape[-1:] != (length,):
                continue
            role = meaning(self.model, self.signature, other).role
            kept = (np.arange(length) < n).astype(np.int64)
            rows = {
                "mask": kept,
                "additive-mask": np.where(kept > 0, 0.0, HIDDEN),
                "types": np.zeros(length, np.int64),
                "positions": np.arange(length),
            }
            if role in rows:
                made[other.name] = _typed(_row(rows[role], other), other, {}, f"{role} of {n} tokens")
        return made

    def _beside(self, name: str) -> Path:
        found = next((f / name for f in self.folders if (f / name).is_file()), None)
        if found is None:
            where = ", ".join(str(f) for f in self.folders)
            raise InvalidInput(Problem(message=f"there is no tokenizer file {name!r}", cure=f"looked in {where}"))
        return found

    def _arrays(self, file: Path) -> dict[str, _Made]:
        """An .npz inside a folder, or with rules: each array by the rules of the input it names."""
        made: dict[str, _Made] = {}
        for key, array in open_arrays(file).items():
            prefix, _, last = key.rpartition("/")
            target = self._named(key) or self._named(last)
            if target is None:
                raise InvalidInput(
                    Problem(
                        message=f"{key!r} names no input",
                        file=str(file),
                        cure=f"inputs: {listed(f.name for f in self.facts.inputs)}",
                    )
                )
            name = target.name if self._named(key) is target or not prefix else f"{prefix}/{target.name}"
            rule = self._rule(target)
            if not rule:
                made[name] = _Made(array=array.read(), dtype=array.dtype, how="as it is")
            elif "function" in rule:
                raise InvalidInput(
                    Problem(
                        message=f"{key!r}: functions read files, not arrays",
                        file=str(file),
                        cure="save the finished array",
                    )
                )
            else:
                made[name] = self._array(array.read(), target, rule, key)
        return made

    def _array(self, array: np.ndarray, target: InputFacts, rule: Mapping[str, Any], where: str) -> _Made:
        if (
            "resize" in rule
            and target.shape[1:3] != tuple(rule["resize"])
            and target.shape[2:4] != tuple(rule["resize"])
        ):
            raise InvalidInput(
                Problem(message=f"'resize' works on picture files, not on the array {where!r}", file=str(self.path),
                        cure="save it with the input's size")
            )  # fmt: skip
        if array.ndim == len(target.shape) - 1:
            array = array[None]
        if rule.get("layout") == "nchw" and array.ndim == 4 and array.shape != target.shape:
            array = np.moveaxis(array, -1, 1)
        if not {"mean", "std", "values", "dtype"} & rule.keys():
            return _Made(array=array, dtype=array.dtype.name, how="as it is")
        last = rule.get("layout") != "nchw"
        values, how = _normalised(
            array.astype(np.float64) if last else np.moveaxis(array, 1, -1), target, rule, self.path
        )
        if not last:
            values = np.moveaxis(values, -1, 1)
        return _typed(values, target, rule, how, direct=how == AS_THEY_ARE)

    def _by_function(self, name: str, file: Path, target: InputFacts | None) -> dict[str, _Made]:
        """Call the user's function with (path, {input: (dtype, shape)}); an array, or {input: array}."""
        function: Callable[..., Any] = load_function(name, self.folders)
        wanted = {f.name: (f.dtype, f.shape) for f in self.facts.inputs}
        try:
            answer = function(file, wanted)
        except Exception as e:  # the user's code: whatever it raises is told about that file
            raise InvalidInput(
                Problem(message=f"{name} raised {type(e).__name__}: {e}", file=str(file), cure="mend the function")
            ) from e
        if not isinstance(answer, Mapping):
            if target is None and len(wanted) == 1:
                target = self.facts.inputs[0]
            if target is None:
                raise InvalidInput(
                    Problem(
                        message=f"{name} returned one array for a model of {len(wanted)} inputs",
                        file=str(file),
                        cure=f"return a dict: {listed(wanted)}",
                    )
                )
            answer = {target.name: answer}
        made = {}
        for key, value in answer.items():
            array = np.asarray(value)
            bits = array.dtype.name == "bfloat16"
            made[str(key)] = _Made(
                array=np.ascontiguousarray(array.view(np.uint16) if bits else array),
                dtype=array.dtype.name,
                how=f"by {name} from {file.name}",
            )
        return made


AS_THEY_ARE = "pixels as they are"


def _layout(shape: tuple[int, ...]) -> str | None:
    if len(shape) != 3:
        return None
    return "nhwc" if shape[2] in (1, 3, 4) else "nchw" if shape[0] in (1, 3, 4) else None


def _mean_std(rule: Mapping[str, Any], file: Path, channels: int) -> tuple[np.ndarray | None, np.ndarray]:
    if "mean" not in rule and "std" not in rule:
        return None, np.ones(1)
    mean, std = np.array(rule.get("mean", [0.0])), np.array(rule.get("std", [1.0]))
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise InvalidInput(
                Problem(
                    message=f"'{name}' has {len(numbers)} numbers for {channels} channel(s)",
                    file=str(file),
                    cure="give one, or one each",
                )
            )
    return mean, std


def _normalised(pixels: np.ndarray, target: InputFacts, rule: Mapping[str, Any], file: Path) -> tuple[np.ndarray, str]:
    """(…, channels) in 0..255 as the model wants them, and how."""
    mean, std = _mean_std(rule, file, pixels.shape[-1])
    convention = rule.get("values", "0..1")
    base = pixels / 255 if convention == "0..1" else pixels
    if mean is not None:
        return (base - mean) / std, f"values {convention}, mean {mean.tolist()}, std {std.tolist()}"
    if "values" in rule:
        return base, f"values {convention}"
    if target.mean and len(target.mean) in (1, pixels.shape[-1]) and len(target.std) in (1, pixels.shape[-1]):
        return (pixels - np.array(target.mean)) / np.array(target.std), "normalised as the model's metadata say"
    if target.dtype in ("uint8", "int8"):
        return np.rint(pixels) - (128 if target.dtype == "int8" else 0), AS_THEY_ARE
    return base, "values 0..1"


def _typed(values: np.ndarray, target: InputFacts, rule: Mapping[str, Any], how: str, *, direct: bool = False) -> _Made:
    """The array as it is stored: quantised with the input's scale, unless it already holds codes."""
    if rule.get("dtype", target.dtype) != target.dtype:
        # What the spec asks for is made, and the fitting says in what it differs from the input.
        return _Made(array=values.astype(rule["dtype"]), dtype=str(rule["dtype"]), how=how)
    facts = dataclasses.replace(target, quantization=None) if direct else target
    return _Made(array=store(facts, values), dtype=target.dtype, how=how)


def _row(row: np.ndarray, target: InputFacts) -> np.ndarray:
    return np.broadcast_to(row, target.shape or (1,)).reshape(target.shape)
