"""The applications as the selector last announced them, and what their requests must look like. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.application_outputs import output_specs
from horologe_common.applications import check_application, undeclared
from horologe_common.clock import ms
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput, Refused, UnknownModel
from horologe_common.wire import ModelState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.wire import ApplicationState
    from horologe_frontend.core.catalogue import ModelCatalogue

RETRY_NS = ms(200)
APPLICATION_RUNTIME = "application"
"""In the place of a model's runtime, in the signature of an application."""


class DeclaredApplications:
    """Applications by name, as one or more selectors announce them: of several declarations, the latest.

    They stay known while no selector is there: their defaults can still be answered.
    """

    def __init__(self, catalogue: ModelCatalogue) -> None:
        self.known = False
        """Whether any selector has ever announced what there is."""
        self._catalogue = catalogue
        self._announced: dict[str, dict[str, ApplicationState]] = {}
        self._latest: dict[str, ApplicationState] = {}
        self._serving: dict[str, tuple[str, ...]] = {}
        self._signatures: dict[str, ModelSpec] = {}

    def replace_announcement(self, selector: str, states: Sequence[ApplicationState]) -> list[str]:
        """Take over an announcement, which is always complete; the names that are declared no more."""
        before = self._latest.keys()
        latest: dict[str, ApplicationState] = {}
        self.known = True
        self._announced[selector] = {state.application.name: state for state in states}
        for announced in self._announced.values():
            for name, state in announced.items():
                if name not in latest or state.revision > latest[name].revision:
                    latest[name] = state
        self._latest = latest
        self._update_serving()
        self.discard_signatures()
        return sorted(before - latest.keys())

    def remove_selector(self, selector: str) -> None:
        """What only this one served is, until another announces that it does or does not."""
        self._announced.pop(selector, None)
        self._update_serving()

    def serving_selectors(self, name: str) -> tuple[str, ...]:
        """The selectors that are there and serve the application as it is declared now."""
        return self._serving.get(name, ())

    def has_selectors(self) -> bool:
        """Whether a selector is there that has said what it serves."""
        return bool(self._announced)

    def _update_serving(self) -> None:
        self._serving = {
            name: tuple(
                [who for who, states in self._announced.items() if _is_same_declaration(states.get(name), state)]
            )
            for name, state in self._latest.items()
        }

    def discard_signatures(self) -> None:
        """The catalogue has been replaced."""
        self._signatures.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._latest

    def find_with_signature(self, name: str) -> tuple[Application, ModelSpec]:
        """The application and its signature. Raises as those do."""
        application = self.find_application(name)
        return application, self.signature(application)

    def find_application(self, name: str) -> Application:
        """Raises `UnknownModel`, or `Refused` while no selector has announced what there is."""
        state = self._latest.get(name)
        if state is None:
            if not self.known:
                raise Refused("no applications are known yet: the selector is starting", RETRY_NS)
            raise undeclared(name)
        return state.application

    def check_declaration(self, application: Application) -> None:
        """Raise `InvalidInput` for a declaration that contradicts itself, or whose models take different inputs."""
        check_application(application)
        with suppress(UnknownModel, Refused):  # models may come later
            self.signature(application)

    def model_states(self, name: str) -> tuple[ModelState, ...]:
        """The application described as a model. Raises as `find`."""
        return (ModelState(self.find_with_signature(name)[1]),)

    def signature(self, application: Application) -> ModelSpec:
        """What its requests must look like, as a model of no version.

        Raises `UnknownModel` where none of its models is known, `Refused` where none is at all, `InvalidInput` where
        they take different inputs.
        """
        state = self._latest.get(application.name)
        is_complete = state is not None and state.application is application
        if is_complete and (spec := self._signatures.get(application.name)):
            return spec
        found = [self._catalogue.find_in_any_state(name) for name in (*application.models, *application.shadows)]
        specs = [spec for spec in found if spec is not None]
        if not specs:
            self._catalogue.check_not_empty()
            raise UnknownModel(
                f"application {application.name!r}: models: got {list(application.models)}, none is served"
            )
        signature = _merge_signatures(application, specs)
        if is_complete:
            self._signatures[application.name] = signature
        return signature


def _is_same_declaration(state: ApplicationState | None, other: ApplicationState) -> bool:
    return state is not None and (state.revision, state.application) == (other.revision, other.application)


def _merge_signatures(application: Application, specs: Sequence[ModelSpec]) -> ModelSpec:
    """What all of these models take: where one is particular, the others follow."""
    first = specs[0]
    inputs = first.inputs
    for spec in specs[1:]:
        fitting = _common_tensors(inputs, spec.inputs) if spec.batched == first.batched else None
        if fitting is None:
            raise InvalidInput(
                f"application {application.name!r}: models: got {spec.key} with inputs {_format_inputs(spec)}, "
                f"wanted {_format_inputs(first)} as {first.key} has"
            )
        inputs = fitting
    return ModelSpec(
        application.name,
        "",
        APPLICATION_RUNTIME,
        inputs,
        first.outputs if application.task == "any" else output_specs(application),
        (min(spec.max_batch for spec in specs),),
        first.batched,
        ms(application.slo_ms),
        cache=True,
        padded=all(spec.padded for spec in specs),
        max_length=min((spec.max_length for spec in specs if spec.max_length), default=0),
    )


def _common_tensors(ours: Sequence[TensorSpec], others: Sequence[TensorSpec]) -> tuple[TensorSpec, ...] | None:
    """Tensors that fit both signatures; None where there are none."""
    by_name = {tensor.name: tensor for tensor in others}
    if by_name.keys() != {tensor.name for tensor in ours}:
        return None
    merged = []
    for tensor in ours:
        other = by_name[tensor.name]
        if tensor.datatype != other.datatype or len(tensor.shape) != len(other.shape):
            return None
        pairs = list(zip(tensor.shape, other.shape, strict=True))
        if any(one != two and -1 not in (one, two) for one, two in pairs):
            return None
        merged.append(TensorSpec(tensor.name, tensor.datatype, tuple(max(pair) for pair in pairs)))
    return tuple(merged)


def _format_inputs(spec: ModelSpec) -> str:
    return ", ".join(f"{one.name} {one.datatype}{list(one.shape)}" for one in spec.inputs)
