"""Ranges of the numbers of a model. Every number from a file or from a worker is checked here before it is used.

A model out of range is UNAVAILABLE with the reason. It must neither reach a scheduler nor keep a message from being
encoded.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import s
from horologe_common.models import DTYPES, MAX_DIM, check_declared_shape
from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.models import ModelSpec, Profile, TensorSpec

DURATION_MAX_NS = s(7 * 86_400)
"""A week: of a batch, a LOAD, a deadline and a timeout."""
AGE_MAX_NS = 1 << 62
"""146 years: of a cached prediction."""
MEMORY_MAX_BYTES = 1 << 50
BATCH_MAX = 1 << 20
BATCH_MAX_BYTES = 16 << 30
"""Size of a tensor of the largest batch."""
BATCHES_MAX, TENSORS_MAX = 1024, 4096
"""Number of batch sizes; number of inputs and of outputs."""
NAME_MAX = 1024
"""Characters of a tensor's name."""
WEIGHT_RANGE = 0.01, 100.0
RATE_MAX = 1e6
"""Requests per second that a model may be guaranteed."""
SPEC_MAX_BYTES = 1 << 16
"""Size of an encoded specification. A worker reports all of its models in one header of at most 16 MiB."""
SHOWN_MAX = 60
"""Characters of a wrong value in a reason."""
DATATYPES = frozenset((*DTYPES, "BYTES"))

_encode = msgspec.msgpack.Encoder().encode


def check_number(where: str, value: float, least: float, most: float) -> None:
    """Raise `InvalidInput` naming field, got and wanted unless the number is in the range. NaN is in no range."""
    if not least <= value <= most:
        raise InvalidInput(f"{where}: got {_shown(value)}, wanted at least {least} and at most {most}")


def check_batch_sizes(where: str, sizes: Sequence[int]) -> None:
    """Raise `InvalidInput` unless the sizes ascend within their range."""
    if len(sizes) > BATCHES_MAX:
        raise InvalidInput(f"{where}: got {len(sizes)} sizes, wanted at most {BATCHES_MAX}")
    before = 0
    for size in sizes:
        if not before < size <= BATCH_MAX:
            raise InvalidInput(f"{where}: got {_shown(list(sizes))}, wanted ascending numbers from 1 to {BATCH_MAX}")
        before = size


def check_spec(spec: ModelSpec) -> None:
    """Raise `InvalidInput` naming the first field of a servable model that is out of range, got and wanted."""
    for field in ("name", "version"):
        text = getattr(spec, field)
        if not text or not text.isprintable() or any(mark in "/#" or mark.isspace() for mark in text):
            raise InvalidInput(f"{field}: got {text[:80]!r}, wanted printable characters without '/', '#', white space")
    if not spec.batch_sizes:
        raise InvalidInput("batch_sizes: got none, wanted at least one")
    check_batch_sizes("batch_sizes", spec.batch_sizes)
    check_number("slo", spec.slo_ns, 0, DURATION_MAX_NS)
    check_number("weights_bytes", spec.weights_bytes, 0, MEMORY_MAX_BYTES)
    check_number("cache_ttl", spec.cache_ttl_ns, 0, AGE_MAX_NS)
    check_number("profile_length", spec.profile_length, 0, MAX_DIM)
    check_number("max_length", spec.max_length, 0, MAX_DIM)
    check_number("max_rows", spec.max_rows, 0, BATCH_MAX)
    check_number("weight", spec.weight, *WEIGHT_RANGE)
    check_number("guaranteed_rate", spec.guaranteed_rate, 0, RATE_MAX)
    _check_tensors("inputs", spec.inputs)
    _check_tensors("outputs", spec.outputs)


def check_size(spec: ModelSpec) -> None:
    """Raise `InvalidInput` if an encoded specification is too large for a report, or a batch too large for memory.

    The largest batch counts, with the length of the profile: it is allocated when the model is measured.
    """
    for field, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        for tensor in tensors:
            rows = spec.batch_sizes[-1] if spec.batched else 1
            sizes = [(spec.profile_length or 1) if dim < 0 else dim for dim in tensor.shape[spec.batched :]]
            batch_bytes = rows * prod(sizes) * (DTYPES[tensor.datatype].itemsize if tensor.datatype in DTYPES else 8)
            if batch_bytes > BATCH_MAX_BYTES:
                got = f"a batch of {rows} rows of {tensor.datatype}{sizes}, {_shown(batch_bytes)} bytes"
                raise InvalidInput(f"{field}: {tensor.name}: got {got}, wanted at most {BATCH_MAX_BYTES}")
    if (size := len(_encode(spec))) > SPEC_MAX_BYTES:
        got = f"{size} bytes of names, shapes and labels"
        raise InvalidInput(f"inputs, outputs: got {got}, wanted at most {SPEC_MAX_BYTES}")


def check_profile(profile: Profile) -> None:
    """Raise `InvalidInput` naming the first measured time that is out of range, got and wanted."""
    check_number("load_ns", profile.load_ns, 0, DURATION_MAX_NS)
    check_batch_sizes("exec_ns", sorted(profile.exec_ns))
    for size, time_ns in profile.exec_ns.items():
        check_number(f"exec_ns of batch size {size}", time_ns, 0, DURATION_MAX_NS)


def _check_tensors(where: str, tensors: tuple[TensorSpec, ...]) -> None:
    if len(tensors) > TENSORS_MAX:
        raise InvalidInput(f"{where}: got {len(tensors)}, wanted at most {TENSORS_MAX}")
    for name, datatype, shape in ((tensor.name, tensor.datatype, tensor.shape) for tensor in tensors):
        if not 0 < len(name) <= NAME_MAX or not is_encodable(name):
            raise InvalidInput(f"{where}: name: got {name[:80]!r}, wanted 1 to {NAME_MAX} characters of Unicode")
        if datatype not in DATATYPES:
            raise InvalidInput(f"{where}: {name}: datatype: got {datatype[:80]!r}, wanted one of {sorted(DATATYPES)}")
        check_declared_shape(f"{where}: {name}", shape)


def _shown(value: Any) -> str:
    """Return the value as text, shortened. Python converts no integer of more than 4,300 digits."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4300 digits"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def is_encodable(text: str) -> bool:
    """Return whether a message can carry the text: surrogates stand for bytes that are not UTF-8."""
    return text.isascii() or re.search("[\ud800-\udfff]", text) is None
