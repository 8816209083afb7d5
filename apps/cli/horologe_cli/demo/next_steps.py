"""What a reader of the demo's result can do next: commands, addresses and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_cli.demo.demo_options import RunningSystem

RUN = ("{command} up --demo", "run the same system until ^C; then, in a second terminal:")
RUN_IN_CONTAINER = (
    "{command} up --demo --http 0.0.0.0:8000 --set http.allow_open=true",
    "run the same system in a container, without keys: publish port 8000 on 127.0.0.1 only; then, in that container:",
)
COMMANDS = (
    ("{command} models{options}", "list the models"),
    ("{command} status{options}", "show devices, memory and pending actions"),
    ("{command} doctor", "check this machine for causes of unpredictable latency"),
)
ADDRESSES = (
    ("{http}/console", "watch every action, live"),
    ("{http}/v2/models/{model}", "Open Inference Protocol"),
)
METRICS = ("http://127.0.0.1:8002/metrics", "Prometheus metrics")
PAGES = (
    ("docs/getting-started.md", "serve your own model"),
    ("docs/applications.md", "create an application, and send feedback"),
    ("docs/request-path.md", "follow one request through the code"),
)


class Surroundings(NamedTuple):
    """Where the demo runs. `command`: how its user calls `horologe`."""

    command: str
    in_container: bool = False
    has_pages: bool = False
    """The demo runs in a checkout. The installed package has no pages."""


def next_steps(model: str, surroundings: Surroundings, running: RunningSystem) -> list[tuple[str, str]]:
    """Return commands, addresses and pages, each with its purpose. `running`: the measured system, if it still runs."""
    steps: Sequence[tuple[str, str]]
    options, http = "", "http://127.0.0.1:8000"
    if running.endpoint:
        options, http = f" --endpoint {running.endpoint}", running.http
        if running.keys:
            options += f" --keys {running.keys}"
        steps = (*COMMANDS, *ADDRESSES)
    elif surroundings.in_container:
        steps = (RUN_IN_CONTAINER, *COMMANDS, *ADDRESSES)
    else:
        steps = (RUN, *COMMANDS, *ADDRESSES, METRICS)
    fields = {"command": surroundings.command, "options": options, "http": http, "model": model}
    pages = PAGES if surroundings.has_pages else ()
    return [(target.format(**fields), purpose) for target, purpose in (*steps, *pages)]
