"""Stages of recorded queries of pipelines: a selector submits each of them as a request of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.hosting import CoreObserver
from horologe_common.wire import Submit
from horologe_selector.core.selector import Selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_sim.explaining.request_history import RequestHistory


class SelectorObserver(CoreObserver):
    """Follows requests through a selector, and adds the stages of those that are queries of pipelines to `targets`.

    `targets`: request and stage by holder and id of their inputs. Stages of a pipeline that another one calls have the
    names of both, such as `outer/inner`.
    """

    def __init__(self, targets: dict[tuple[str, int], tuple[RequestHistory, str]]) -> None:
        self._targets = targets
        self._runs: dict[tuple[str, int], tuple[RequestHistory, str]] = {}
        """Request and stage by selector and id of the run."""

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Note the Submits of this selector to itself: each begins a run of a pipeline."""
        if not isinstance(message, Submit) or sender != core.address:
            return
        if target := self._targets.get((message.holder, message.input_id)):
            self._runs[core.address, message.id] = target
            target[0].is_pipeline = True

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Note the Submits of stages. The selector itself holds their inputs."""
        if not self._runs or not isinstance(core, Selector):
            return
        for out in outs:
            submit = out.message
            if not isinstance(submit, Submit) or submit.holder != core.address:
                continue
            run, name = core.pipelines.calls.find_stage(submit.input_id) or (0, "")
            if target := self._runs.get((core.address, run)):
                request, outer = target
                self._targets[core.address, submit.input_id] = request, f"{outer}/{name}" if outer else name
