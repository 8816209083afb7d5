"""The connections of a client: one for each thread that uses it, none from before a fork."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import zmq

from horologe.transport.blocking_link import BlockingLink
from horologe_common.status import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe.core.session import Session
    from horologe.transport.dealer import Dealer


class ThreadLinks:
    """Opens a connection for a thread when the thread first needs one. A link ends with its thread."""

    def __init__(self, new_session: Callable[[], Session], new_dealer: Callable[[], Dealer]) -> None:
        self._new_session = new_session
        self._new_dealer = new_dealer
        self._closed = False
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        """Start without links. ZeroMQ's sockets of a parent process would block for ever."""
        self._local = threading.local()
        self._links: weakref.WeakSet[BlockingLink] = weakref.WeakSet()
        self._opening = threading.Lock()
        self._context: zmq.Context[Any] | None = None

    def current(self) -> BlockingLink:
        """Return the link of the calling thread. Raises `Cancelled` after `close`."""
        if self._closed:
            raise Cancelled("the client is closed")
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._open()
        return link

    def close(self) -> None:
        """Close the links of all threads. Pending requests end with `Cancelled`."""
        with self._opening:
            self._closed = True
            links, context, self._context = list(self._links), self._context, None
        for link in links:
            link.close()
        if context is not None:
            context.term()

    def reset_after_fork(self) -> None:
        """End the requests of the parent process in this one, and start without links."""
        for link in self._links:
            link.session.close()
        self._reset()

    def _open(self) -> BlockingLink:
        with self._opening:
            if self._closed:
                raise Cancelled("the client is closed")
            if self._context is None:
                self._context = zmq.Context()
            link = BlockingLink(self._new_session(), self._new_dealer(), self._context)
            link.open()
            self._links.add(link)
            return link


_instances: weakref.WeakSet[ThreadLinks] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for links in _instances:
        links.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
