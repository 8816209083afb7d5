"""Open sessions of models that are not loaded, in host memory: LOAD makes such a model resident without opening it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec

SESSION_BYTES, COPIES = 128 << 10, 2
"""Memory of a session: a fixed part, and its weights with copies packed for the processor. 128 kB for a no-op (73 kB
measured), 0.6 MB for digits-cnn with weights of 0.24 MB (0.68 MB measured).
"""


class HostSessions:
    """Idle sessions by model key and content hash. The sessions that were unloaded first are closed first.

    Only sessions of the content that was opened last are kept. Invariant: `held_bytes` is the sum of all sessions and
    at most `limit_bytes`. Used by all lanes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._idle: dict[tuple[str, str], list[tuple[Any, int]]] = {}
        self._contents: dict[str, str] = {}
        """Model key -> hash of the content that was opened last."""
        self._lock = Lock()

    def __contains__(self, spec: ModelSpec) -> bool:
        return (spec.key, spec.content_hash) in self._idle

    def set_content(self, spec: ModelSpec) -> None:
        """Record that this content of the model was opened, and close the idle sessions of the content before."""
        with self._lock:
            before = self._contents.get(spec.key, spec.content_hash)
            self._contents[spec.key] = spec.content_hash
            while before != spec.content_hash and self._pop((spec.key, before)):
                pass

    def take(self, spec: ModelSpec) -> Any:
        """Remove and return an idle session of the model; None if there is none."""
        with self._lock:
            return self._pop((spec.key, spec.content_hash))

    def keep(self, spec: ModelSpec, session: Any) -> None:
        """Add an idle session, and close others if the limit is exceeded. Without a content hash it is not kept."""
        size = SESSION_BYTES + COPIES * spec.weights_bytes
        if not spec.content_hash or size > self.limit_bytes:
            return
        key = spec.key, spec.content_hash
        with self._lock:
            if self._contents.get(spec.key, spec.content_hash) != spec.content_hash:
                return
            while self.held_bytes + size > self.limit_bytes:
                self._pop(next(iter(self._idle)))
            sessions = self._idle.pop(key, [])
            self._idle[key] = [*sessions, (session, size)]  # at the end: closed last
            self.held_bytes += size

    def check(self) -> None:
        held = sum(size for sessions in self._idle.values() for _, size in sessions)
        assert self.held_bytes == held <= self.limit_bytes
        assert all(self._idle.values())

    def _pop(self, key: tuple[str, str]) -> Any:
        sessions = self._idle.get(key)
        if not sessions:
            return None
        session, size = sessions.pop()
        self.held_bytes -= size
        if not sessions:
            del self._idle[key]
        return session
