"""Applications and pipelines use the version that requests without a version reach."""

from __future__ import annotations

from harness.builders import a_spec
from horologe_common.wire import Models, ModelState
from horologe_selector.core.announced_models import AnnouncedModels


def announced(models: AnnouncedModels, *states: tuple[str, str, float], number: int = 1, incomplete: str = "") -> None:
    states_of = tuple(ModelState(a_spec("sum", version), state, "", part) for version, state, part in states)
    models.on_models(0, "controller/0#1", Models(0, states_of, number=number, incomplete=incomplete))


def find(models: AnnouncedModels) -> tuple[str, str]:
    """Return the version that is ready, and the one that calls may wait for; empty for none."""
    ready, callable_now = models.find_ready("sum"), models.find_callable("sum")
    return ready.version if ready else "", callable_now.version if callable_now else ""


def test_a_name_stands_for_the_version_with_the_largest_part() -> None:
    models = AnnouncedModels()
    models.order.connect("controller/0#1")
    announced(models, ("1", "READY", 0.0), ("2", "READY", 0.0))
    assert find(models) == ("2", "2")
    announced(models, ("1", "READY", 0.9), ("2", "READY", 0.1), number=2)
    assert find(models) == ("1", "1")
    announced(models, ("1", "LOADING", 1.0), ("2", "READY", 0.0), number=3)
    assert find(models) == ("", "1"), "calls wait for it"
    announced(models, number=4, incomplete="0 of 1 workers have registered")
    assert find(models)[1] == "1", "a controller that has just started knows no models"
