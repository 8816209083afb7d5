"""The models and pipelines that were announced, and the check of inputs against their signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import ms
from horologe_common.core.message_order import NOT_ANNOUNCED
from horologe_common.core.protocol import instance
from horologe_common.models import check_request, natural_sort_key
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.rollouts import CREDIT, reached_versions
from horologe_common.status import HorologeError, Refused, UnknownModel
from horologe_common.string_tensors import check_strings
from horologe_common.wire import ModelState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Tensor

RETRY_NS = ms(200)


class ModelVersions:
    """Model versions by name.

    `incomplete`: why a model that is not among them may exist; empty if it does not. `is_announced`: a controller has
    announced its models.
    """

    def __init__(self) -> None:
        self.is_announced = False
        self.incomplete = NOT_ANNOUNCED
        self._models: tuple[ModelState, ...] = ()
        self._pipelines: dict[str, tuple[ModelState, ...]] = {}
        """Pipelines by instance of the selector. They stay known while it restarts."""
        self._by_name: dict[str, list[ModelState]] = {}
        self._resolved: dict[tuple[str, str], ModelSpec] = {}
        self._canaries: dict[str, tuple[ModelSpec, int]] = {}
        """Name -> the version that gets a part of the requests, and the part in millionths."""
        self._credits: dict[str, int] = {}
        """Name -> millionths of a request that its canary has not got yet."""
        self._last_checks: dict[str, tuple[tuple[Any, ...], tuple[int, int, int]]] = {}

    def replace_models(self, models: Sequence[ModelState], incomplete: str = "") -> None:
        """Store an announcement. While it is incomplete, the models of an earlier controller stay known as LOADING."""
        self.is_announced, self.incomplete = True, incomplete
        if incomplete:
            announced = {state.spec.key for state in models}
            earlier = [state for state in self._models if state.spec.key not in announced]
            models = [*models, *(_as_loading(state, incomplete) for state in earlier)]
        self._models = tuple(models)
        self._index_states()

    def replace_pipelines(self, selector: str, pipelines: tuple[ModelState, ...]) -> None:
        """Store a selector's announcement. A model hides the pipeline of the same name."""
        self._pipelines[instance(selector)] = pipelines
        self._index_states()

    def _index_states(self) -> None:
        self._by_name, self._resolved, self._last_checks = {}, {}, {}
        for state in sorted(self._models, key=lambda state: natural_sort_key(state.spec.version)):
            self._by_name.setdefault(state.spec.name, []).append(state)
        pipelines: dict[str, ModelState] = {}
        for state in (state for states in self._pipelines.values() for state in states):
            if state.spec.name not in pipelines or state.state == "READY":
                pipelines[state.spec.name] = state
        for name, state in pipelines.items():
            self._by_name.setdefault(name, [state])
        self._canaries = {}
        for name, states in self._by_name.items():
            if len(states) > 1 and len(reached := reached_versions(states)) > 1 and reached[-1].state == "READY":
                self._canaries[name] = reached[-1].spec, round(reached[-1].traffic * CREDIT)
        self._credits = {name: self._credits.get(name, 0) for name in self._canaries}

    @property
    def is_settled(self) -> bool:
        """Return whether all models are known, and none is loading that may still be served.

        A pipeline whose driver has failed does not count.
        """
        return not self.incomplete and not any(
            state.state == "LOADING" and not (state.reason and state.spec.runtime == PIPELINE_RUNTIME)
            for state in self.model_states()
        )

    def model_states(self, name: str = "") -> tuple[ModelState, ...]:
        """Return all versions of a model, oldest first. Without a name, return those of all models."""
        if name:
            return tuple(self._by_name.get(name, ()))
        return tuple(state for states in self._by_name.values() for state in states)

    def metric_labels(self, name: str, version: str) -> tuple[str, str]:
        """Return the labels of a rejected request: a model of the catalogue, or empty strings."""
        try:
            spec = self.find_model(name, version)
        except HorologeError:
            return ("", "")
        return (spec.name, spec.version)

    def has_canary(self, name: str) -> bool:
        """Return whether requests without a version may reach two versions of a model."""
        return name in self._canaries

    def choose_model(self, name: str, version: str) -> ModelSpec:
        """Return the version that answers a new request: `find_model`, or the canary of the model in its turn.

        Raise as `find_model` does.
        """
        if not version and (canary := self._canaries.get(name)) is not None:
            credit = self._credits[name] + canary[1]
            self._credits[name] = credit % CREDIT
            if credit >= CREDIT:
                return canary[0]
        return self.find_model(name, version)

    def find_model(self, name: str, version: str = "") -> ModelSpec:
        """Return a version that is READY or LOADING. Without a version, return the one that requests reach.

        A request for a model whose workers restart thus waits for them until its deadline. Raise `UnknownModel`, with
        the reason if the model is UNAVAILABLE; `Refused` while the model is loading and its signature is not known, or
        a worker that has not registered may have the model.
        """
        if spec := self._resolved.get((name, version)):
            return spec
        states = self._by_name.get(name, [])
        if version:
            states = [state for state in states if state.spec.version == version]
        if not states:
            self.check_complete()
            asked = f"{name!r}{f' version {version!r}' if version else ''}"
            raise UnknownModel(f"model: got {asked}, which is not served")
        state = (reached_versions(states) or states[-1:])[0]
        if state.state == "UNAVAILABLE":
            raise UnknownModel(state.explain_state())
        check_read(state)
        self._resolved[name, version] = state.spec
        return state.spec

    def check_complete(self) -> None:
        """Raise `Refused` while a worker that has not registered, or a selector, may have further models."""
        incomplete = self.incomplete or ("" if self._pipelines else "no selector has announced its pipelines")
        if incomplete:
            raise Refused(f"not all models are known yet: {incomplete}", RETRY_NS)

    def check_signatures(self, declared: Sequence[str]) -> None:
        """Raise `check_read`'s error for a model `name` or `name/version`, first for those that are loading."""
        states = [state for name in declared for state in self.model_states(name.partition("/")[0])]
        for state in sorted(states, key=lambda state: state.state != "LOADING"):
            check_read(state)

    def find_in_any_state(self, declared: str) -> ModelSpec | None:
        """Return the model `name` or `name/version` of an application, also if it is not served.

        Return None if there is none whose signature is known.
        """
        name, _, version = declared.partition("/")
        try:
            return self.find_model(name, version)
        except HorologeError:
            specs = [state.spec for state in self.model_states(name) if name and version in ("", state.spec.version)]
            return next((spec for spec in reversed(specs) if spec.has_signature), None)

    def check_inputs(
        self, spec: ModelSpec, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer], outputs: tuple[str, ...] = ()
    ) -> tuple[int, int, int]:
        """Return (rows, shape key, length). Raise `InvalidInput` unless inputs and outputs fit the signature.

        The last result for the headers of each model is kept, because most requests equal the one before in shape.
        """
        checked = (spec, inputs, outputs)
        last = self._last_checks.get(spec.key)
        if last is None or last[0] != checked:
            last = self._last_checks[spec.key] = checked, check_request(spec, inputs, outputs)
        if spec.has_string_inputs:
            check_strings(spec, inputs, buffers)
        return last[1]


def check_read(state: ModelState) -> None:
    """Raise an error if the signature is not known: `Refused` while the model is loading, else `UnknownModel`."""
    if not state.spec.has_signature:
        loading = state.state == "LOADING"
        raise Refused(state.explain_state(), RETRY_NS) if loading else UnknownModel(state.explain_state())


def _as_loading(state: ModelState, reason: str) -> ModelState:
    return state if state.state == "UNAVAILABLE" else ModelState(state.spec, "LOADING", reason, state.traffic)
