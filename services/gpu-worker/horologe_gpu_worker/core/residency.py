"""Pages of a share: the models that hold them, and the LOAD and UNLOAD actions (Clockwork section 5.2). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Load, Result, Share, Unload
from horologe_gpu_worker.core.lanes import Finished, LaneOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from horologe_common.models import ModelSpec

Requester = tuple[str, int]
"""Address of the controller that sent an action or a Scan, and its id."""


class PageCache:
    """Pages of a share by model.

    Invariant: free pages and the pages of all models add up to `total`. Models hold whole pages or eighths, so floats
    are exact.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free_pages: float = total
        self.held: dict[str, float] = {}
        """Model -> its pages, in the order of allocation."""

    def __contains__(self, model: str) -> bool:
        return model in self.held

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def allocate(self, model: str, pages: float) -> bool:
        """Allocate `pages` pages (more than 0) to the model. Return False and allocate nothing if fewer are free.

        A model that already holds pages keeps them, and the result is True.
        """
        if model in self.held:
            return True
        if pages <= 0 or pages > self.free_pages:
            return False
        self.held[model] = pages
        self.free_pages -= pages
        return True

    def free(self, model: str) -> float:
        """Free the model's pages and return their number; 0 if the model held none."""
        pages = self.held.pop(model, 0)
        self.free_pages += pages
        return pages

    def check(self) -> None:
        assert self.free_pages + sum(self.held.values()) == self.total
        assert self.free_pages >= 0
        assert all(pages > 0 for pages in self.held.values())


class Residency:
    """Models of one share.

    A model holds pages from the arrival of its LOAD until UNLOAD, a failed LOAD, or the end of its process.
    """

    def __init__(
        self, share: int, device: str, pages: int, lanes: str, hardware: str = "", percent: float = 100.0
    ) -> None:
        self.share = share
        self.device = device
        self.hardware = hardware
        self.percent = percent
        self.pages = PageCache(pages)
        self.lanes = lanes
        self.out: list[Out] = []
        self._load_requesters: dict[str, list[Requester]] = {}
        self._deferred_unloads: dict[str, list[Requester]] = {}
        self.loads: dict[int, str] = {}
        """Action id -> model, for the load operations that a lane holds."""
        self._last_actions: dict[tuple[str, str], int] = {}
        """(controller, model) -> id of its last LOAD or UNLOAD. A controller sends growing ids."""

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Ids of LOAD and UNLOAD actions that have no Result yet."""
        pending = (*self._load_requesters.values(), *self._deferred_unloads.values())
        return tuple(action_id for requesters in pending for _, action_id in requesters)

    def describe_share(self) -> Share:
        """Return the share as reported in Register. A model is loading until its LOAD has finished, then resident."""
        loaded = tuple(model for model in self.pages if model not in self._load_requesters)
        loading = tuple((model, action_id) for action_id, model in self.loads.items())
        return Share(self.share, self.device, self.pages.total, loaded, loading, self.hardware, self.percent)

    def remove_controller(self, controller: str) -> None:
        """Remove the ids of a controller that has disconnected."""
        for key in [key for key in self._last_actions if key[0] == controller]:
            del self._last_actions[key]

    def record_action(self, sender: str, action: Load | Unload) -> int | None:
        """Record a LOAD or UNLOAD and return None, or the id of the model's last one if that has the same or a larger
        id: the action must not be carried out.
        """
        last_id = self._last_actions.get((sender, action.model), 0)
        if action.action_id <= last_id:
            return last_id
        self._last_actions[sender, action.model] = action.action_id
        return None

    def load_model(self, now_ns: int, sender: str, load: Load, spec: ModelSpec) -> None:
        """Allocate pages and load the model.

        Send OK at once if the model is loaded, REFUSED if too few pages are free, TOO_LATE if the window has closed.
        """
        requester = sender, load.action_id
        if load.model in self._load_requesters:
            self._load_requesters[load.model].append(requester)
        elif load.action_id in self.loads:
            self._send_result(now_ns, requester, Status.REFUSED, "an action with this id is pending")
        elif load.model in self.pages:
            self._send_result(now_ns, requester)
        elif now_ns > load.latest_ns:
            self._send_result(now_ns, requester, Status.TOO_LATE)
        elif not self.pages.allocate(load.model, spec.pages):
            free = f"{self.pages.free_pages:g} of {self.pages.total} are free"
            reason = f"pages: {load.model} needs {spec.pages:g}, {free}"
            self._send_result(now_ns, requester, Status.REFUSED, reason)
        else:
            self._load_requesters[load.model] = [requester]
            self.loads[load.action_id] = load.model
            operation = LaneOperation(
                load.action_id,
                self.share,
                "load",
                load.model,
                earliest_ns=load.earliest_ns,
                latest_ns=load.latest_ns,
                expected_ns=load.expected_ns,
                spec=spec,
            )
            self.out.append(Out(self.lanes, operation))

    def unload_model(self, now_ns: int, sender: str, unload: Unload) -> None:
        """Free the model's pages. If a LOAD of the model runs, wait for its end first.

        Ignore an UNLOAD that arrives again, or after a later action for the model.
        """
        requester = (sender, unload.action_id)
        if self.record_action(sender, unload) is not None:
            return
        if unload.model in self._load_requesters:
            self._deferred_unloads.setdefault(unload.model, []).append(requester)
            return
        if unload.model in self.pages:
            self._release_model(unload.model, unload.action_id)
        self._send_result(now_ns, requester)

    def finish_load(self, now_ns: int, finished: Finished) -> None:
        """Finish a load operation: send a Result to every controller that requested the LOAD."""
        model = self.loads.pop(finished.action_id, None)
        if model is None:
            return  # a load of another share
        if finished.status != Status.OK:
            self.pages.free(model)
        for sender, action_id in self._load_requesters.pop(model, ()):
            result = Result(
                action_id,
                int(finished.status),
                finished.begin_ns,
                finished.end_ns,
                finished.device_ns,
                reason=finished.reason,
            )
            self.out.append(Out(sender, result))
        requesters = self._deferred_unloads.pop(model, ())
        if requesters and model in self.pages:
            self._release_model(model, requesters[0][1])
        for requester in requesters:
            self._send_result(now_ns, requester)

    def is_loading(self, model: str) -> bool:
        """Return whether a LOAD of the model runs."""
        return model in self._load_requesters

    def resize_model(self, model: str, pages: float, action_id: int) -> None:
        """Let the model hold `pages` pages, not more than before. 0: unload it. Do nothing if it holds none."""
        if model not in self.pages:
            return
        if pages <= 0:
            self._release_model(model, action_id)
        elif pages < self.pages.held[model]:
            self.pages.free(model)
            self.pages.allocate(model, pages)

    def discard_model(self, model: str, action_id: int, controllers: Iterable[str]) -> None:
        """Unload a model whose process has ended, and send the controllers an Unload. `action_id`: the failed INFER.

        The pages of a copy that is being loaded stay: the process was that of an earlier copy.
        """
        if model in self.pages and model not in self._load_requesters:
            self._release_model(model, action_id)
            self.out.extend(Out(controller, Unload(action_id, self.share, model)) for controller in controllers)

    def check(self) -> None:
        self.pages.check()
        assert all(model in self.pages for model in self._load_requesters)
        assert sorted(self.loads.values()) == sorted(self._load_requesters)
        assert all(model in self._load_requesters for model in self._deferred_unloads)

    def _release_model(self, model: str, action_id: int) -> None:
        """Free the pages at once. The load lane frees the memory before it runs any later LOAD."""
        self.pages.free(model)
        self.out.append(Out(self.lanes, LaneOperation(action_id, self.share, "unload", model)))

    def _send_result(self, now_ns: int, requester: Requester, status: Status = Status.OK, reason: str = "") -> None:
        self.out.append(Out(requester[0], Result(requester[1], int(status), now_ns, now_ns, reason=reason)))
