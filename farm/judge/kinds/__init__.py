"""One file per family of output kinds: measure two arrays, decide by bands, loosen by the noise floor."""

from __future__ import annotations

from farm.judge.kinds.classification import Classification
from farm.judge.kinds.distribution import Distribution
from farm.judge.kinds.embedding import Embedding
from farm.judge.kinds.exact import Exact
from farm.judge.kinds.probability import Probability
from farm.judge.kinds.quantised import Quantised
from farm.judge.kinds.values import ValuesKind
from farm.judge.pair import Kind


def kind_named(name: str) -> Kind:
    """Return the kind. Raises KeyError for a name that is none (the spec's door refuses those)."""
    kinds: dict[str, Kind] = {
        "values": ValuesKind(),
        "embedding": Embedding(),
        "distribution": Distribution(),
        "classification": Classification(),
        "probability": Probability(),
        "mask": Probability(),
        "quantised": Quantised(),
        "ints": Exact(),
        "bools": Exact(),
        "indices": Exact(),
    }
    return kinds[name]
