"""The applications that the selectors announced, and their signatures."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.application_answers import output_specs
from horologe_common.applications import check_application, undeclared_application
from horologe_common.clock import ms, s
from horologe_common.core.instruments import RollingQuantile
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput, Refused, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.applications import Application
    from horologe_common.wire import ApplicationState
    from horologe_frontend.core.model_versions import ModelVersions

RETRY_NS = ms(200)
APPLICATION_RUNTIME = "application"
"""The `runtime` in the signature of an application."""
LEAD_INTERVAL_NS = ms(50)
LEAD_WINDOW = 400
"""Number of timer delays kept: those of 20 s with requests."""


class DefaultLead:
    """Lead of default answers before the deadline: the 99th percentile of recent timer delays, at least `minimum_ns`.

    If the loop stalls for longer than the lead, defaults are sent LATE. The delays are those of a separate timer, which
    runs while requests with a default arrive. The timers of the requests themselves expire at times that clients
    choose: many requests with short deadlines would hide a stall.
    """

    def __init__(self, minimum_ns: int) -> None:
        self.timer_ns: int | None = None
        """When to call `measure_delay`. None: no recent request needed the lead."""
        self._minimum_ns = minimum_ns
        self._delays = RollingQuantile(LEAD_WINDOW, s(60), 0.99)
        self._used = False

    def lead_ns(self, now_ns: int) -> int:
        """Return the lead for a request that arrives now."""
        self._used = True
        if self.timer_ns is None:
            self.timer_ns = now_ns + LEAD_INTERVAL_NS
        return max(self._minimum_ns, self._delays.high_quantile(now_ns) or 0)

    def measure_delay(self, now_ns: int) -> None:
        """Record the delay of an expired timer, and restart the timer if the lead was used since."""
        if self.timer_ns is None or now_ns < self.timer_ns:
            return
        self._delays.observe(now_ns, now_ns - self.timer_ns)
        self.timer_ns = now_ns + LEAD_INTERVAL_NS if self._used else None
        self._used = False


class DeclaredApplications:
    """Applications by name. If several selectors announce a name, the declaration with the highest revision counts.

    Applications stay known while no selector is connected, so that requests still get their defaults.
    """

    def __init__(self, catalogue: ModelVersions) -> None:
        self._is_complete = False
        """A selector has announced its applications, at least once."""
        self._catalogue = catalogue
        self._announced: dict[str, dict[str, ApplicationState]] = {}
        self._latest: dict[str, ApplicationState] = {}
        self._serving: dict[str, tuple[str, ...]] = {}
        self._signatures: dict[str, ModelSpec] = {}

    def replace_announcement(self, selector: str, states: Sequence[ApplicationState]) -> list[str]:
        """Store an announcement, which holds all applications of the selector. Return the names no longer declared."""
        before = self._latest.keys()
        latest: dict[str, ApplicationState] = {}
        self._is_complete = True
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
        """Remove a disconnected selector. Its applications stay declared until another selector's announcement."""
        self._announced.pop(selector, None)
        self._update_serving()

    def serving_selectors(self, name: str) -> tuple[str, ...]:
        """Return the connected selectors that have announced the current declaration of the application."""
        return self._serving.get(name, ())

    def has_selectors(self) -> bool:
        """Return whether a connected selector has announced its applications."""
        return bool(self._announced)

    def _update_serving(self) -> None:
        self._serving = {}
        for name, latest in self._latest.items():
            announced = [(selector, states.get(name)) for selector, states in self._announced.items()]
            self._serving[name] = tuple([selector for selector, state in announced if _is_same(state, latest)])

    def discard_signatures(self) -> None:
        """Compute the signatures again when they are needed: the models have changed."""
        self._signatures.clear()

    def __iter__(self) -> Iterator[str]:
        return iter(self._latest)

    def __contains__(self, name: str) -> bool:
        return name in self._latest

    def find_with_signature(self, name: str) -> tuple[Application, ModelSpec]:
        """Return the application and its signature. Raise as `find_application` and `signature` do."""
        application = self.find_application(name)
        return application, self.signature(application)

    def find_application(self, name: str) -> Application:
        """Return an application. Raise `UnknownModel`, or `Refused` if it is unavailable or none is announced yet."""
        state = self._latest.get(name)
        if state is None:
            if not self._is_complete:
                raise Refused("no applications are known yet: the selector is starting", RETRY_NS)
            raise undeclared_application(name)
        if state.unavailable:
            raise Refused(state.unavailable)
        return state.application

    def check_declaration(self, application: Application) -> None:
        """Raise `InvalidInput` for a contradictory declaration, or models with different inputs, if they are known."""
        check_application(application)
        with suppress(UnknownModel, Refused):
            self.signature(application)

    def signature(self, application: Application) -> ModelSpec:
        """Return the inputs and outputs of its requests, as a model without a version.

        Raise `UnknownModel` if none of its models is known, `Refused` while not all models are known, `InvalidInput`
        if its models take different inputs.
        """
        state = self._latest.get(application.name)
        declared = state is not None and state.application is application
        if declared and (spec := self._signatures.get(application.name)):
            return spec
        names = (*application.models, *application.shadows)
        specs = [spec for name in names if (spec := self._catalogue.find_in_any_state(name)) is not None]
        if not specs:
            self._catalogue.check_complete()
            self._catalogue.check_signatures(application.models)
            raise UnknownModel(
                f"application {application.name!r}: models: got {list(application.models)}, none is served"
            )
        signature = _merge_signatures(application, specs)
        if declared:
            self._signatures[application.name] = signature
        return signature


def _is_same(state: ApplicationState | None, other: ApplicationState) -> bool:
    return state is not None and (state.revision, state.application) == (other.revision, other.application)


def _merge_signatures(application: Application, specs: Sequence[ModelSpec]) -> ModelSpec:
    """Return a signature that all models accept. A dimension that is fixed in one model is fixed in the result.

    Beside a model that is not batched, requests have one row.
    """
    first = specs[0]
    inputs = first.inputs
    for spec in specs[1:]:
        common = _common_tensors(inputs, spec.inputs)
        if common is None or (spec.batched != first.batched and not _fit_one_row(common)):
            raise InvalidInput(
                f"application {application.name!r}: models: got {spec.key} with inputs {_format_inputs(spec)}, "
                f"wanted {_format_inputs(first)} as {first.key} has"
            )
        inputs = common
    return ModelSpec(
        application.name,
        "",
        APPLICATION_RUNTIME,
        inputs,
        first.outputs if application.task == "any" else output_specs(application),
        (min(spec.max_batch for spec in specs),),
        any(spec.batched for spec in specs),
        ms(application.slo_ms),
        cache=True,
        padded=all(spec.padded for spec in specs),
        max_length=min((spec.max_length for spec in specs if spec.max_length), default=0),
        text=any(spec.text for spec in specs),
    )


def _common_tensors(ours: Sequence[TensorSpec], others: Sequence[TensorSpec]) -> tuple[TensorSpec, ...] | None:
    """Return the tensors that fit both signatures, or None if there are none."""
    by_name = {tensor.name: tensor for tensor in others}
    if by_name.keys() != {tensor.name for tensor in ours}:
        return None
    merged = []
    for tensor in ours:
        other = by_name[tensor.name]
        if tensor.datatype != other.datatype or len(tensor.shape) != len(other.shape):
            return None
        pairs = list(zip(tensor.shape, other.shape, strict=True))
        if any(left != right and -1 not in (left, right) for left, right in pairs):
            return None
        merged.append(TensorSpec(tensor.name, tensor.datatype, tuple(max(pair) for pair in pairs)))
    return tuple(merged)


def _fit_one_row(tensors: Sequence[TensorSpec]) -> bool:
    return all(tensor.shape[:1] in ((-1,), (1,)) for tensor in tensors)


def _format_inputs(spec: ModelSpec) -> str:
    inputs = ", ".join(f"{tensor.name} {tensor.datatype}{list(tensor.shape)}" for tensor in spec.inputs)
    return inputs if spec.batched else f"{inputs} (not batched)"
