"""Staged inputs: tensors that a holder keeps until the request has its outcome."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from horologe_common.core.accounts import fair_part
from horologe_common.core.protocol import UNLIMITED, Out, role
from horologe_common.wire import Dispatch, Ship, Shipped, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer


OWNED_FROM = 16 << 10
"""Smaller inputs do not count as their owner's: the number of its requests bounds them."""
EARLY_DISPATCHES = 256
"""Dispatches kept for workers that are not connected yet. A controller plans a few milliseconds ahead per worker."""


class StagedInputs:
    """Inputs by id, bounded in bytes. `hold` them before sending their id; `release` frees them.

    To ship inputs does not release them: they are shipped again if the worker dies. An owner gets its
    `fair_part` of the bytes.

    A controller may plan for a new worker before the worker is connected to this holder. Its inputs are then shipped
    when it connects.

    Invariant: `held_bytes` is the sum of the sizes of all inputs, and at most `limit_bytes`.
    """

    def __init__(self, holder: str, limit_bytes: int) -> None:
        self.holder = holder
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.workers: dict[str, int] = {}
        """Connected workers, and the size (bytes) of the largest inputs of a request that each accepts."""
        self._early: deque[Dispatch] = deque(maxlen=EARLY_DISPATCHES)
        self._held: dict[int, tuple[tuple[Tensor, ...], Sequence[Buffer], int]] = {}
        self._owners: dict[int, str] = {}
        """Owner of each input of at least `OWNED_FROM` bytes that has one."""
        self._owned_bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, input_id: int) -> bool:
        return input_id in self._held

    def ids(self) -> list[int]:
        """Return the ids of all inputs."""
        return list(self._held)

    def hold(self, input_id: int, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer], owner: str = "") -> bool:
        """Hold the inputs. Return False, without holding them, if they would exceed a limit. An owner is a client."""
        if input_id in self._held:
            self.release(input_id)
        size = sum(map(len, buffers))
        if self.held_bytes + size > self.limit_bytes:
            return False
        if owner and size >= OWNED_FROM:
            owned = self._owned_bytes.get(owner, 0)
            if owned + size > fair_part(self.limit_bytes - self.held_bytes + owned):
                return False
            self._owned_bytes[owner], self._owners[input_id] = owned + size, owner
        self._held[input_id] = (inputs, buffers, size)
        self.held_bytes += size
        return True

    def inputs_of(self, input_id: int) -> tuple[tuple[Tensor, ...], Sequence[Buffer]] | None:
        """Return headers and bytes, or None if the id is not held."""
        held = self._held.get(input_id)
        return held[:2] if held else None

    def release(self, input_id: int) -> None:
        """Free the inputs of an id, if they are held."""
        if held := self._held.pop(input_id, None):
            self.held_bytes -= held[2]
            if held[2] >= OWNED_FROM and (owner := self._owners.pop(input_id, "")):
                self._owned_bytes[owner] -= held[2]
                if not self._owned_bytes[owner]:
                    del self._owned_bytes[owner]

    def add_worker(self, address: str, max_frame_bytes: int = UNLIMITED) -> list[Out]:
        """Record that a worker has connected. Return the Ships that have waited for it."""
        self.workers[address] = max_frame_bytes
        early = [dispatch for dispatch in self._early if dispatch.worker == address]
        for dispatch in early:
            self._early.remove(dispatch)
        return [self._ship(dispatch) for dispatch in early]

    def remove_worker(self, address: str) -> None:
        """Record that a worker has disconnected."""
        self.workers.pop(address, None)

    def answer_dispatch(self, dispatch: Dispatch) -> list[Out]:
        """Return the Ship for a Dispatch, or nothing yet if its worker is not connected.

        A selector asks for the inputs of pipelines over the link that the holder has to it.
        """
        if dispatch.worker in self.workers or role(dispatch.worker) != "worker":
            return [self._ship(dispatch)]
        self._early.append(dispatch)
        return []

    def _ship(self, dispatch: Dispatch) -> Out:
        """Return a Ship with the inputs that are held, and the ids of those that are not, or that are too large."""
        limit = self.workers.get(dispatch.worker, UNLIMITED)
        items: list[Shipped] = []
        buffers: list[Buffer] = []
        missing: list[int] = []
        for input_id in dispatch.input_ids:
            if (held := self._held.get(input_id)) and held[2] <= limit:
                items.append(Shipped(input_id, held[0]))
                buffers.extend(held[1])
            else:
                missing.append(input_id)
        return Out(dispatch.worker, Ship(dispatch.action_id, self.holder, tuple(items), tuple(missing)), buffers)

    def check(self) -> None:
        assert self.held_bytes == sum(size for *_, size in self._held.values()) <= self.limit_bytes
        assert sum(self._owned_bytes.values()) == sum(self._held[input_id][2] for input_id in self._owners)
