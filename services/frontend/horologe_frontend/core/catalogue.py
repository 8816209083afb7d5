"""The models as the controller last announced them, and what fits their signatures."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from horologe_common.clock import ms
from horologe_common.models import check_tensor, check_variable, length_of, natural
from horologe_common.status import HorologeError, InvalidInput, Refused, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import ModelState, Tensor

RETRY_NS = ms(200)


class ModelCatalogue:
    """Model versions by name. `ready`: the controller has announced itself."""

    def __init__(self) -> None:
        self.is_complete = False
        self._by_name: dict[str, list[ModelState]] = {}
        self._resolved: dict[tuple[str, str], ModelSpec] = {}
        self._last_checks: dict[str, tuple[tuple[Any, ...], tuple[int, int, int]]] = {}

    def replace_models(self, models: Sequence[ModelState]) -> None:
        """Take over an announcement, which is always complete."""
        self.is_complete = True
        self._by_name, self._resolved, self._last_checks = {}, {}, {}
        for state in sorted(models, key=lambda state: natural(state.spec.version)):
            self._by_name.setdefault(state.spec.name, []).append(state)

    def model_states(self, name: str = "") -> tuple[ModelState, ...]:
        """All versions of a model, oldest first; without a name, of all models."""
        if name:
            return tuple(self._by_name.get(name, ()))
        return tuple(state for states in self._by_name.values() for state in states)

    def metric_labels(self, name: str, version: str) -> tuple[str, str]:
        """Metric labels of a request that was not accepted: bounded by the catalogue, whatever the client sent."""
        try:
            spec = self.find_model(name, version)
        except HorologeError:
            return ("", "")
        return (spec.name, spec.version)

    def find_model(self, name: str, version: str = "") -> ModelSpec:
        """That version; without one, the newest that is READY, else one LOADING.

        Raises `UnknownModel`, or `Refused` while no model is known at all.

        A request for a model whose workers are restarting waits for them while its deadline allows.
        """
        if spec := self._resolved.get((name, version)):
            return spec
        self.check_not_empty()
        states = [state for state in reversed(self._by_name.get(name, ())) if version in ("", state.spec.version)]
        for wanted in ("READY", "LOADING"):
            for state in states:
                if state.state == wanted:
                    self._resolved[name, version] = state.spec
                    return state.spec
        raise UnknownModel(f"model: got {name!r}{f' version {version!r}' if version else ''}, which is not served")

    def check_not_empty(self) -> None:
        """Raise `Refused` while no model is known at all: just (re)started, as soon as a worker reports it may be."""
        if not self._by_name:
            raise Refused("no models are known yet: the controller or its workers are starting", RETRY_NS)

    def find_in_any_state(self, declared: str) -> ModelSpec | None:
        """The model that an application names, `name` or `name/version`, in whatever state; None if there is none."""
        name, _, version = declared.partition("/")
        try:
            return self.find_model(name, version)
        except HorologeError:
            specs = [state.spec for state in self.model_states(name) if name and version in ("", state.spec.version)]
            return specs[-1] if specs else None

    def check_inputs(
        self, spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...] = ()
    ) -> tuple[int, int, int]:
        """(number of rows, `alike`, `length`). Raises `InvalidInput` unless inputs and outputs fit the signature.

        Most requests of a model look like the one before: that verdict is remembered.
        """
        asked = (spec, inputs, outputs)
        known = self._last_checks.get(spec.key)
        if known is None or known[0] != asked:
            known = self._last_checks[spec.key] = asked, _check_request(spec, inputs, outputs)
        return known[1]


def _check_request(spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...]) -> tuple[int, int, int]:
    rows = _check_tensors(spec, inputs, outputs)
    if not spec.variable:
        return rows, 0, 0
    shapes = {tensor.name: tensor.shape for tensor in inputs}
    check_variable(spec, shapes)
    return rows, shape_key(spec, inputs), length_of(spec, shapes)


def _check_tensors(spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...]) -> int:
    """Number of rows. Raises `InvalidInput`, naming field, got and wanted."""
    given = {tensor.name: tensor for tensor in inputs}
    wanted = {tensor.name: tensor for tensor in spec.inputs}
    if len(given) != len(inputs) or given.keys() != wanted.keys():
        names = [tensor.name for tensor in inputs]
        raise InvalidInput(f"inputs: got {names}, wanted {list(wanted)}")
    for name, tensor in given.items():
        check_tensor(wanted[name], tensor.datatype, tensor.shape)
    known = [tensor.name for tensor in spec.outputs]
    for name in outputs:
        if name not in known:
            raise InvalidInput(f"outputs: got {name!r}, wanted some of {known}")
    if not spec.batched:
        return 1
    rows = {tensor.shape[0] for tensor in inputs}
    if len(rows) != 1 or not 1 <= min(rows) <= spec.max_batch:
        raise InvalidInput(f"inputs: got {sorted(rows)} rows, wanted 1 to {spec.max_batch}, the same for all")
    return rows.pop()


def shape_key(spec: ModelSpec, inputs: Sequence[Tensor]) -> int:
    """Equal for requests that can share a batch: 0 for padded models and those that batch nothing, else a checksum."""
    if spec.padded or not spec.batched:
        return 0
    return zlib.crc32(repr([(tensor.name, tensor.shape[1:]) for tensor in inputs]).encode()) | 1 << 32
