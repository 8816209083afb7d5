"""Models as the controller last announced them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.models import natural_sort_key
from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Models


class AnnouncedModels:
    """Model versions by key `name/version`, and the ready ones also by name; `versions` holds them in any state."""

    def __init__(self) -> None:
        self.versions: dict[str, ModelSpec] = {}
        self._newest: dict[str, ModelSpec] = {}
        self._ready: dict[str, ModelSpec] = {}

    def on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer] = ()) -> None:
        """Replace all models by those of an announcement, which is always complete."""
        self.versions = {state.spec.key: state.spec for state in message.models}
        ready = [state.spec for state in message.models if state.state == "READY"]
        self._ready = {spec.key: spec for spec in ready}
        self._newest = {spec.name: spec for spec in sorted(ready, key=lambda spec: natural_sort_key(spec.version))}

    def find_ready(self, model: str) -> ModelSpec | None:
        """Return the ready model `name/version`, or the newest ready version of `name`; None if there is none."""
        return self._ready.get(model) or self._newest.get(model)

    def check_output(self, application: Application) -> None:
        """Raise `InvalidInput` if a ready model lacks the application's output; it would be missing every time."""
        for model in (*application.models, *application.shadows):
            spec = self.find_ready(model)
            names = [] if spec is None else [output.name for output in spec.outputs]
            if names and application.output and application.output not in names:
                raise InvalidInput(
                    f"output: got {application.output!r}, wanted one of model {model}: {', '.join(names)}"
                )
