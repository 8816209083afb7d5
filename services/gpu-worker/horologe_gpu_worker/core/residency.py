"""Which models are in the pages of a share, and the LOADs and UNLOADs that change it (Clockwork section 5.2). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Load, Result, Share, Unload
from horologe_gpu_worker.core.lanes import Finished, Operation
from horologe_gpu_worker.core.pages import PageCache

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec

Asker = tuple[str, int]
"""Who wants to know (a controller), and the id of the action."""


class Residency:
    """The pages of one share. A model is loading, then loaded, then gone; it holds pages from LOAD's arrival on."""

    def __init__(self, share: int, device: str, pages: int, lanes: str) -> None:
        self.share = share
        self.device = device
        self.pages = PageCache(pages)
        self.lanes = lanes
        self.out: list[Out] = []
        self._loading: dict[str, list[Asker]] = {}
        self._unload_next: dict[str, list[Asker]] = {}
        self._model_of: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._model_of)

    @property
    def running(self) -> tuple[int, ...]:
        """Ids of LOAD and UNLOAD actions that are not finished."""
        waiting = (*self._loading.values(), *self._unload_next.values())
        return tuple(action_id for askers in waiting for _, action_id in askers)

    def report(self) -> Share:
        """The share as Register tells it: a model counts as resident when it can run, until then as loading."""
        loaded = tuple(model for model in self.pages if model not in self._loading)
        loading = tuple((model, action_id) for action_id, model in self._model_of.items())
        return Share(self.share, self.device, self.pages.total, loaded, loading)

    def load(self, now_ns: int, sender: str, load: Load, spec: ModelSpec) -> None:
        """Take pages and load; OK at once if that is done already, REFUSED for lack of pages: for now."""
        if load.model in self._loading:
            self._loading[load.model].append((sender, load.action_id))
        elif load.action_id in self._model_of:
            self._answer(now_ns, (sender, load.action_id), Status.REFUSED, "an action with this id is pending")
        elif load.model in self.pages:
            self._answer(now_ns, (sender, load.action_id))
        elif now_ns > load.latest_ns:
            self._answer(now_ns, (sender, load.action_id), Status.TOO_LATE)
        elif not self.pages.allocate(load.model, spec.pages):
            reason = f"pages: {load.model} needs {spec.pages}, {self.pages.free_pages} of {self.pages.total} are free"
            self._answer(now_ns, (sender, load.action_id), Status.REFUSED, reason)
        else:
            self._loading[load.model] = [(sender, load.action_id)]
            self._model_of[load.action_id] = load.model
            operation = Operation(
                load.action_id,
                self.share,
                "load",
                load.model,
                earliest_ns=load.earliest_ns,
                latest_ns=load.latest_ns,
                expected_ns=load.expected_ns,
            )
            self.out.append(Out(self.lanes, operation))

    def unload(self, now_ns: int, sender: str, unload: Unload) -> None:
        """Free the pages. Always succeeds; a LOAD that has not ended is waited for."""
        asker = (sender, unload.action_id)
        if unload.model in self._loading:
            self._unload_next.setdefault(unload.model, []).append(asker)
            return
        if unload.model in self.pages:
            self._close(unload.model, unload.action_id)
        self._answer(now_ns, asker)

    def finished(self, now_ns: int, finished: Finished) -> None:
        """The end of a load operation: answer everybody who asked for it."""
        model = self._model_of.pop(finished.action_id, None)
        if model is None:
            return  # of another share
        if finished.status != Status.OK:
            self.pages.free(model)
        for sender, action_id in self._loading.pop(model, ()):
            result = Result(
                action_id,
                int(finished.status),
                finished.begin_ns,
                finished.end_ns,
                finished.device_ns,
                reason=finished.reason,
            )
            self.out.append(Out(sender, result))
        askers = self._unload_next.pop(model, ())
        if askers and model in self.pages:
            self._close(model, askers[0][1])
        for asker in askers:
            self._answer(now_ns, asker)

    def check(self) -> None:
        self.pages.check()
        assert all(model in self.pages for model in self._loading)
        assert sorted(self._model_of.values()) == sorted(self._loading)
        assert all(model in self._loading for model in self._unload_next)

    def _close(self, model: str, action_id: int) -> None:
        """Give the pages back at once; the memory follows before any later load on the same lane."""
        self.pages.free(model)
        self.out.append(Out(self.lanes, Operation(action_id, self.share, "unload", model)))

    def _answer(self, now_ns: int, asker: Asker, status: Status = Status.OK, reason: str = "") -> None:
        self.out.append(Out(asker[0], Result(asker[1], int(status), now_ns, now_ns, reason=reason)))
