"""Load a model and show that it is still loading: a model may take minutes to construct and to measure."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from horologe_cli.output import fail
from horologe_common.status import HorologeError, Lost

if TYPE_CHECKING:
    from horologe import Client
    from horologe_common.wire import ModelState

SENT_S = 1.0
"""Without waiting: seconds in which the server may still report an error, such as an unknown model."""
REPORT_S = 5.0
"""Interval between two lines of progress."""


def load_model(client: Client, model: str, version: str, timeout_s: float) -> list[ModelState]:
    """Load the model and return its states. Write progress to standard error.

    With a `timeout_s` of 0, return the present states while the model is loading. Raises `HorologeError`. Ends the
    command if the model is still loading after `timeout_s` seconds.
    """
    before = client.models(model)  # raises if no server answers
    begin_s, finished = time.monotonic(), threading.Event()
    progress = threading.Thread(target=_report, args=(client, model, finished), daemon=True)
    progress.start()
    try:
        return client.admit(model, version, True, timeout=timeout_s or SENT_S)
    except Lost:
        if time.monotonic() - begin_s < (timeout_s or SENT_S):
            raise
        hint = f"`horologe models {model}` shows its state"
        if timeout_s:
            fail(f"{model} is still loading after {timeout_s:g} s; {hint}")
        sys.stderr.write(f"horologe: {model} is loading; {hint}\n")
        return before
    finally:
        finished.set()


def _report(client: Client, model: str, finished: threading.Event) -> None:
    """Write a line every `REPORT_S` seconds until `finished` is set."""
    begin_s = time.monotonic()
    while not finished.wait(REPORT_S):
        try:
            states = ", ".join(f"{state.spec.version} {state.state}" for state in client.models(model))
        except HorologeError as error:
            states = str(error)
        elapsed_s = time.monotonic() - begin_s
        sys.stderr.write(f"horologe: loading {model} for {elapsed_s:.0f} s; versions: {states or 'none yet'}\n")
        sys.stderr.flush()
