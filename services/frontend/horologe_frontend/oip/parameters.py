"""Parameters of an inference request and of its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.clock import ms, s, us
from horologe_common.status import InvalidInput
from horologe_frontend.http.exchange import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_frontend.oip.json_encoding import OutputJson

NONE: Mapping[str, Any] = {}
MAX_BUDGET_NS = s(86_400)
"""A longer deadline than a day is taken as a day."""


class Output(NamedTuple):
    """How one output is wanted: as binary data; as its `classes` highest values (0: as it is)."""

    binary: bool = False
    classes: int = 0


class Wanted(NamedTuple):
    """The outputs asked for, in the order asked; empty: all of them, each as `default` says."""

    outputs: Mapping[str, Output]
    default: Output

    def of(self, name: str) -> Output:
        return self.outputs.get(name, self.default)


def budget_ns(parameters: Mapping[str, Any]) -> int:
    """The deadline: the smaller of `timeout` (microseconds) and `slo_ms`; 0 if there is neither.

    `timeout` 0 means none, as in Triton's schedule policy extension. Raises `InvalidInput`.
    """
    if not parameters:
        return 0
    budgets = []
    if timeout := _number(parameters, "timeout", "microseconds, 0 or more"):
        budgets.append(us(timeout))
    if "slo_ms" in parameters:
        slo_ms = _number(parameters, "slo_ms", "milliseconds, more than 0")
        if slo_ms <= 0:
            raise InvalidInput(f"parameters.slo_ms: got {slo_ms}, wanted milliseconds, more than 0")
        budgets.append(ms(slo_ms))
    return max(1, min(*budgets, MAX_BUDGET_NS)) if budgets else 0


def text(parameters: Mapping[str, Any], name: str) -> str:
    """`application`: on whose behalf the request is; `context`: of an application. Empty if it does not say.

    Raises `InvalidInput`.
    """
    value = parameters.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted a text")
    return value


def _number(parameters: Mapping[str, Any], name: str, wanted: str) -> float:
    value = parameters.get(name, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"parameters.{name}: got {value!r}, wanted {wanted}")
    return min(value, 1e15)


def check_request(parameters: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for reserved names and for a priority that is none (it is accepted, deadlines decide)."""
    for name in parameters:
        if name.startswith("triton_"):
            raise InvalidInput(f"parameters.{name}: names that begin with triton_ are reserved")
    if "priority" in parameters:
        _number(parameters, "priority", "a priority, 0 or more")


def wanted_outputs(parameters: Mapping[str, Any], outputs: list[OutputJson] | None) -> Wanted:
    """What the request says of its outputs. Raises `InvalidInput`."""
    default = Output(_flag(parameters, "parameters", "binary_data_output", False))
    asked: dict[str, Output] = {}
    for output in outputs or ():
        if output.name in asked:
            raise InvalidInput(f"output {output.name!r}: asked for twice")
        asked[output.name] = _output(output, default) if output.parameters else default
    return Wanted(asked, default)


def _output(output: OutputJson, default: Output) -> Output:
    where, parameters = f"output {output.name!r}", output.parameters or NONE
    refuse_shared_memory(where, parameters)
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
        raise InvalidInput(f"{where}: classification: got {classes!r}, wanted a number of classes")
    return Output(_flag(parameters, where, "binary_data", default.binary), classes)


def _flag(parameters: Mapping[str, Any], where: str, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}: {name}: got {value!r}, wanted true or false")
    return value


def refuse_shared_memory(where: str, parameters: Mapping[str, Any]) -> None:
    """Raises `HttpError` 501: shared memory is not offered."""
    if "shared_memory_region" in parameters:
        raise HttpError(501, f"{where}: shared_memory_region: shared memory is not supported; send the data")
