"""What a model's TFLite metadata says about its inputs: how images are normalised. Needed to make natural inputs.

The metadata is a flatbuffer of its own ("M001") in the buffer named TFLITE_METADATA; only the few tables on the way to
NormalizationOptions are read. Field order: tflite-support, metadata/metadata_schema.fbs.
"""

from __future__ import annotations

from farm.flatbuffer import Damaged, Reader
from farm.tflite import Model

_TABLES = {
    "ModelMetadata": "name:str description:str version:str subgraph_metadata:[{SubGraphMetadata",
    "SubGraphMetadata": "name:str description:str input_tensor_metadata:[{TensorMetadata",
    "TensorMetadata": "name:str description:str dimension_names:[str - process_units:[{ProcessUnit",
    "ProcessUnit": "options_type:u8 options:|ProcessUnitOptions",
    "NormalizationOptions": "mean:[f32 std:[f32",
}
_UNIONS = {"ProcessUnitOptions": {1: "NormalizationOptions"}}

Scaling = tuple[tuple[float, ...], tuple[float, ...]]


def normalisations(model: Model) -> dict[tuple[int, int], Scaling]:
    """(subgraph, input position) → (mean, std) where the metadata states one; damaged or absent metadata give none."""
    at = model.metadata.get("TFLITE_METADATA")
    if at is None:
        return {}
    start, size = model.buffers[at]
    data = model.data[start : start + size]
    if bytes(data[4:8]) != b"M001":
        return {}
    try:
        # A copy: alignment in it counts from its own start.
        root = Reader(memoryview(bytes(data)), _TABLES, _UNIONS).read("ModelMetadata")
    except Damaged:
        # Metadata never decides whether a model can run; without it inputs are made as for any other model.
        return {}
    found: dict[tuple[int, int], Scaling] = {}
    for g, sub in enumerate(root["subgraph_metadata"] or ()):
        for i, tensor in enumerate(sub["input_tensor_metadata"] or ()):
            for unit in tensor["process_units"] or ():
                options = unit["options"]
                if options and options["mean"] and options["std"] and all(s > 0 for s in options["std"]):
                    found[g, i] = (options["mean"], options["std"])
    return found
