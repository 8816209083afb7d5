"""Models as the controller last announced them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.message_order import NOT_ANNOUNCED, AnnouncementOrder
from horologe_common.models import natural_sort_key
from horologe_common.status import InvalidInput, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Models, ModelState


class AnnouncedModels:
    """Model versions by key `name/version`, and the ready ones also by name; `versions` holds them in any state.

    `incomplete`: why a model that is not among them may exist; empty if it does not. `pipelines`: those of this
    selector, by name and by key. A model hides the pipeline of the same name.
    """

    def __init__(self) -> None:
        self.incomplete = NOT_ANNOUNCED
        self.order = AnnouncementOrder()
        self.versions: dict[str, ModelSpec] = {}
        self.pipelines: dict[str, ModelSpec] = {}
        self.pipelines_read = True
        """False until the folder of pipelines has been read."""
        self._by_name: dict[str, ModelSpec] = {}
        """Name -> the ready version that requests without a version reach."""
        self._chosen: dict[str, ModelState] = {}
        """Name -> the version that requests reach, in any state, if the controller has chosen it."""
        self._ready: dict[str, ModelSpec] = {}
        self._unready: dict[str, ModelState] = {}
        """Name and key of models that are LOADING or UNAVAILABLE."""

    def on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer] = ()) -> None:
        """Replace all models by those of an announcement.

        If it is incomplete, the models of an earlier controller stay known: their queries wait for their workers.
        """
        if not self.order.accept(controller, message.number):
            return
        self.incomplete = message.incomplete
        earlier, ready = (self.versions, self._ready) if message.incomplete else ({}, {})
        announced = {state.spec.key: state.spec for state in message.models}
        newly_ready = {state.spec.key: state.spec for state in message.models if state.state == "READY"}
        self._unready = {
            model: state
            for wanted in ("UNAVAILABLE", "LOADING")
            for state in message.models
            if state.state == wanted
            for model in (state.spec.name, state.spec.key)
        }
        self.versions = earlier | announced
        self._ready = {key: spec for key, spec in ready.items() if key not in announced} | newly_ready
        in_order = sorted(self._ready.values(), key=lambda spec: natural_sort_key(spec.version))
        named = {state.spec.name: state for state in sorted(message.models, key=lambda state: state.traffic)}
        chosen = self._chosen if message.incomplete else {}
        chosen = {name: state for name, state in chosen.items() if name not in named}
        chosen |= {name: state for name, state in named.items() if state.traffic}
        self._by_name = {spec.name: spec for spec in in_order if spec.name not in chosen}
        self._by_name |= {name: state.spec for name, state in chosen.items() if state.state == "READY"}
        self._chosen = chosen

    def explain_missing(self, model: str) -> tuple[Status, str]:
        """Return the status and reason of a query for a model that is not ready."""
        unready = self._unready.get(model)
        if unready and unready.state == "LOADING":
            return Status.REFUSED, unready.explain_state()
        if self.incomplete:
            return Status.REFUSED, f"model {model!r} is not known yet: {self.incomplete}"
        if not self.pipelines_read:
            return Status.REFUSED, f"model {model!r} is not known yet: the selector has not read its pipelines"
        return Status.UNKNOWN_MODEL, unready.explain_state() if unready else f"model {model!r} is not served"

    def find_ready(self, model: str) -> ModelSpec | None:
        """Return the ready model `name/version`, the ready version that `name` reaches, or the pipeline; else None."""
        return self._ready.get(model) or self._by_name.get(model) or self.pipelines.get(model)

    def find_callable(self, model: str) -> ModelSpec | None:
        """Return the model as `find_ready` does, else in any state: its requests wait.

        Return None if no version has been read yet.
        """
        if spec := self.find_ready(model):
            return spec
        model = self._chosen[model].spec.key if model in self._chosen else model
        specs = [spec for spec in self.versions.values() if model in (spec.key, spec.name) and spec.has_signature]
        return max(specs, key=lambda spec: natural_sort_key(spec.version), default=None)

    def check_output(self, application: Application) -> None:
        """Raise `InvalidInput` if a ready model lacks the application's output; it would be missing every time."""
        for model in (*application.models, *application.shadows):
            spec = self.find_ready(model)
            if spec is not None and spec.streams:
                raise InvalidInput(f"models: got {model!r}, which streams its outputs, wanted models with one answer")
            names = [] if spec is None else [output.name for output in spec.outputs]
            if names and application.output and application.output not in names:
                raise InvalidInput(
                    f"output: got {application.output!r}, wanted one of model {model}: {', '.join(names)}"
                )
