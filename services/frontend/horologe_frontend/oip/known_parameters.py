"""Parameters of requests: the names that have an effect here. None is ignored silently.

Clients of Triton, KServe and MLServer may send parameters that change what they expect of the answer: a request with
such a one is refused. A parameter that only asks for another order is named in the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from horologe_common.status import InvalidInput
from horologe_frontend.core.management import ROLLOUTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class EffectiveParameters(msgspec.Struct):
    """Parameters of a request that have an effect here."""

    application: str = ""
    binary_data_output: bool = False
    content_hash: bool = False
    context: str = ""
    priority: Annotated[int, Meta(ge=0)] = 0
    slo_ms: Annotated[float, Meta(gt=0)] | None = None
    timeout: Annotated[float, Meta(ge=0)] = 0


NO = Annotated[bool, Meta(extra_json_schema={"const": False})]


class ParametersJson(EffectiveParameters, forbid_unknown_fields=True):
    """Parameters of a request. The deadline is the earlier one of `slo_ms`, in milliseconds, and `timeout`, in
    microseconds (0: none), from the arrival of the request.
    """

    sequence_id: Annotated[int | str, Meta(extra_json_schema={"enum": [0, ""]})] = 0
    sequence_start: NO = False
    sequence_end: NO = False


REQUEST = EffectiveParameters.__struct_fields__
ITEMS = ("first_item_ms", "gap_ms")
"""Parameters of a request for a stream."""
GENERATE = (*(name for name in REQUEST if name != "binary_data_output"), *ITEMS)
SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
"""Known, so that `shared_memory_region` gets its own error."""
INPUT = ("binary_data_size", *SHARED_MEMORY)
OUTPUT = ("binary_data", "classification", *SHARED_MEMORY)
UNLOAD = ("unload_dependents",)
"""Triton's client sends it. No model here has dependents."""
LOAD = (*ROLLOUTS, "weight", *UNLOAD)
INDEPENDENT = "requests are independent of each other: sequences are not supported"
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "sequence_id": ((0, ""), INDEPENDENT),
    "sequence_start": ((False,), INDEPENDENT),
    "sequence_end": ((False,), INDEPENDENT),
}
"""Parameters of Triton -> the values that mean the same as no such parameter, and why others are refused."""
IGNORED = "ignored_parameters"
"""Parameter of a response: the names of the request's parameters that had no effect, separated by commas."""
NAME_SHOWN = 80
"""Characters of a name that an error message shows."""


def check_parameters(where: str, parameters: Mapping[str, Any] | None, known: Iterable[str]) -> None:
    """Raise `InvalidInput`, naming the parameter, unless all are `known` or without effect."""
    for name, value in (parameters or {}).items():
        place = f"{where}{name[:NAME_SHOWN]}"
        if name in NEUTRAL:
            check_neutral(place, name, value)
        elif name.startswith("triton_"):
            raise InvalidInput(f"{place}: names that begin with triton_ are reserved")
        elif name not in known:
            raise InvalidInput(f"{place}: unknown parameter, wanted some of {', '.join(known)}")


def check_neutral(place: str, name: str, value: Any) -> None:
    """Raise `InvalidInput` unless the value means the same as no such parameter."""
    values, reason = NEUTRAL[name]
    if not any(type(value) is type(neutral) and value == neutral for neutral in values):
        wanted = " or ".join(map(repr, values)).lower()
        raise InvalidInput(f"{place}: got {value!r}, wanted {wanted}, or no such parameter: {reason}")


def check_raw(where: str, parameters: Mapping[str, Any], name: str) -> None:
    """Raise `InvalidInput` if a parameter asks for outputs over gRPC in another form than raw contents."""
    if (value := parameters.get(name, True)) is not True:
        raise InvalidInput(f"{where}{name}: got {value!r}, wanted true: outputs over gRPC are always raw")


def ignored_parameters(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters to name in the response: a priority, because deadlines decide. Raise `InvalidInput`."""
    priority = parameters.get("priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
        raise InvalidInput(f"parameters.priority: got {priority!r}, wanted a priority, 0 or more")
    return ("priority",) if priority else ()


def read_rollout(parameters: Mapping[str, Any]) -> tuple[str, str, float]:
    """Return the rollout that a load asks for, its version and its weight; ("", "", 0) for none. Raise `InvalidInput`.

    gRPC has no type for the weight: it is a number, or the text of one.
    """
    named = [name for name in ROLLOUTS if name in parameters]
    if len(named) > 1:
        raise InvalidInput(f"parameters: got {' and '.join(named)}, wanted one of them")
    rollout = named[0] if named else ""
    version = parameters.get(rollout, "")
    if rollout == "rollback":
        if version is not True:
            raise InvalidInput(f"parameters.rollback: got {version!r}, wanted true, or no such parameter")
        version = ""
    if not isinstance(version, str):
        raise InvalidInput(f"parameters.{rollout}: got {version!r}, wanted the name of a version")
    if ("weight" in parameters) != (rollout == "canary"):
        raise InvalidInput("parameters: wanted canary and weight together")
    weight = parameters.get("weight", 0)
    try:
        if isinstance(weight, bool):
            raise ValueError
        return rollout, version, float(weight)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"parameters.weight: got {weight!r}, wanted a number") from None
