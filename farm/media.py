"""Pictures, sound and text as plain numbers: decoding alone, nothing about a model. Used by preprocess.py.

Pictures need Pillow (the extra `images`); WAV needs the standard library; text a vocabulary file.
"""

from __future__ import annotations

import json
import unicodedata
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import InvalidInput, Problem

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
SOUNDS = (".wav",)
TEXTS = (".txt",)
CURE_PILLOW = "pip install 'litert-farm[images]', or give .npz"


def _refused(path: Path, message: str, cure: str | None = None) -> InvalidInput:
    return InvalidInput(Problem(message=message, file=str(path), cure=cure))


def picture(path: Path, *, channels: int, size: tuple[int, int] | None) -> np.ndarray:
    """Decode a picture: (height, width, channels) float64 in 0..255, bilinear to `size` (height, width) if given.

    The camera's orientation is applied; transparency is dropped unless 4 channels are asked for.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as e:
        raise _refused(path, "pictures need Pillow, which is not installed", CURE_PILLOW) from e
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    if channels not in modes:
        raise _refused(path, f"a picture has 1, 3 or 4 channels, the input {channels}", "give .npz")
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert(modes[channels])
            if size is not None:
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            array = np.asarray(image, np.float64)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as e:
        raise _refused(path, f"cannot be read as a picture: {e}", "save it again as PNG") from e
    return array.reshape(*array.shape[:2], channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """samples: (frames, channels) float64 in -1..1."""

    samples: np.ndarray
    rate: int


def sound(path: Path) -> Sound:
    """Decode a PCM WAV of 8, 16, 24 or 32 bits."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate, frames = (
                file.getsampwidth(), file.getnchannels(), file.getframerate(), file.getnframes(),
            )  # fmt: skip
            data = file.readframes(frames)
    except (OSError, EOFError, wave.Error) as e:
        raise _refused(
            path, f"cannot be read as WAV: {e}", "save it as 16-bit PCM: ffmpeg -i IN -c:a pcm_s16le OUT.wav"
        ) from e
    if width == 1:
        values = (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    elif width in (2, 4):
        values = np.frombuffer(data[: len(data) // width * width], f"<i{width}") / float(1 << (8 * width - 1))
    elif width == 3:
        three = np.frombuffer(data[: len(data) // 3 * 3], np.uint8).reshape(-1, 3).astype(np.int32)
        values = ((three[:, 0] << 8 | three[:, 1] << 16 | three[:, 2] << 24) >> 8) / float(1 << 23)
    else:
        raise _refused(path, f"holds samples of {8 * width} bits", "save it as 16-bit PCM")
    whole = len(values) // channels * channels
    if not whole:
        raise _refused(path, "holds no samples")
    return Sound(samples=values[:whole].reshape(-1, channels), rate=rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Ids of one text, special tokens included, not padded. pad: the id to fill up with."""

    ids: tuple[int, ...]
    pad: int


def tokens(text: str, tokenizer: Path, longest: int) -> Tokens:
    """Turn a text into at most `longest` ids.

    tokenizer: a BERT vocab.txt (one token a line), or a tokenizer.json, WordPiece natively, others through the package
    `tokenizers` where it is installed.
    """
    try:
        raw = tokenizer.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise _refused(tokenizer, f"cannot be read: {e}", "name a vocab.txt or a tokenizer.json") from e
    if tokenizer.suffix == ".json":
        return _from_json(text, tokenizer, raw, longest)
    if tokenizer.suffix != ".txt":
        raise _refused(tokenizer, "is no tokenizer that farm reads", "name a vocab.txt or a tokenizer.json")
    vocabulary = {token: number for number, token in enumerate(raw.splitlines())}
    # A cased vocabulary holds capitals, an uncased one none.
    lower = not any(t[:1].isupper() for t in vocabulary if not t.startswith("["))
    return _wordpiece(text, tokenizer, vocabulary, lower, longest)


def _from_json(text: str, path: Path, raw: str, longest: int) -> Tokens:
    try:
        described: Any = json.loads(raw)
        model = described["model"]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise _refused(path, "is no tokenizer.json", "export it with save_pretrained()") from e
    if isinstance(model, dict) and model.get("type") == "WordPiece" and isinstance(model.get("vocab"), dict):
        normalizer = described.get("normalizer") or {}
        return _wordpiece(text, path, model["vocab"], bool(normalizer.get("lowercase", True)), longest)
    try:
        import tokenizers
    except ImportError as e:
        kind = model.get("type") if isinstance(model, dict) else None
        raise _refused(
            path,
            f"is a {kind} tokenizer; farm itself reads WordPiece only",
            "pip install tokenizers, or give the ids as .npz",
        ) from e
    loaded = tokenizers.Tokenizer.from_str(raw)
    pad = next((i for i in map(loaded.token_to_id, ("[PAD]", "<pad>")) if i is not None), 0)
    return Tokens(ids=tuple(loaded.encode(text).ids[:longest]), pad=pad)


def _wordpiece(text: str, path: Path, vocabulary: dict[str, int], lower: bool, longest: int) -> Tokens:
    """BERT's own: split at blanks and punctuation, then the longest known piece first."""
    unknown = vocabulary.get("[UNK]")
    if unknown is None:
        raise _refused(path, "has no [UNK] token, so it is no WordPiece vocabulary")
    ids: list[int] = []
    for word in _words(text, lower):
        ids += _pieces(word, vocabulary, unknown)
    first, last = vocabulary.get("[CLS]"), vocabulary.get("[SEP]")
    if first is not None and last is not None:
        ids = [first, *ids[: max(longest - 2, 0)], last]
    return Tokens(ids=tuple(ids[:longest]), pad=vocabulary.get("[PAD]", 0))


def _words(text: str, lower: bool) -> list[str]:
    if lower:
        text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if _alone(c) else " " if c.isspace() else c for c in text)
    return "".join(c for c in spaced if c == " " or unicodedata.category(c)[0] != "C").split()


def _alone(c: str) -> bool:
    """Punctuation (ASCII symbols count) and CJK ideographs are words by themselves."""
    ascii_symbol = 33 <= ord(c) <= 126 and not c.isalnum()
    return ascii_symbol or unicodedata.category(c)[0] == "P" or 0x4E00 <= ord(c) <= 0x9FFF or 0x3400 <= ord(c) <= 0x4DBF


def _pieces(word: str, vocabulary: dict[str, int], unknown: int) -> list[int]:
    if len(word) > 100:
        return [unknown]
    found: list[int] = []
    start = 0
    while start < len(word):
        end = len(word)
        while end > start and (("##" if start else "") + word[start:end]) not in vocabulary:
            end -= 1
        if end == start:
            return [unknown]
        found.append(vocabulary[("##" if start else "") + word[start:end]])
        start = end
    return found
