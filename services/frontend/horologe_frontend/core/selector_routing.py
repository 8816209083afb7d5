"""Routing: the connected selectors, and which of them gets a request.

Related requests go to the same selector, so that predictions and contexts stay in its memory. The selector is the one
with the highest hash of its name and the key (rendezvous hashing: Thaler and Ravishankar, IEEE/ACM Transactions on
Networking 6(1), 1998). If a selector disconnects, only its keys move to others, and back to its successor.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from horologe_common.application_answers import MARK_BYTES, selector_mark
from horologe_common.core.protocol import instance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.wire import ModelState, Query
    from horologe_frontend.core.application_requests import DeclaredApplications


class SelectorRouter:
    """The addresses of the connected selectors. Routes are empty if no selector can serve the request."""

    def __init__(self, declared: DeclaredApplications) -> None:
        self.connected: list[str] = []
        """The selectors that accept queries."""
        self._draining: dict[str, bool] = {}
        self._declared = declared
        self._pipelines: dict[str, dict[str, str]] = {}
        """Connected selector -> the states of the pipelines that it has announced, by name and by `name/version`."""
        self._marks: dict[bytes, str] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self.connected)

    def __contains__(self, address: str) -> bool:
        """Return whether the selector can still answer."""
        return address in self.connected or address in self._draining

    def add_selector(self, address: str) -> None:
        if address not in self.connected:
            self.connected.append(address)
        self._marks[selector_mark(address)] = address

    def remove_selector(self, address: str) -> None:
        if address in self:
            del self._marks[selector_mark(address)]
        self.drain_selector(address)
        self._draining.pop(address, None)

    def drain_selector(self, address: str) -> None:
        """Send no further query to a selector. It still answers those that it has."""
        if address in self.connected:
            self.connected.remove(address)
            self._draining[address] = True
        self._pipelines.pop(address, None)
        self._declared.remove_selector(address)

    def replace_pipelines(self, selector: str, states: Sequence[ModelState]) -> None:
        """Store the pipelines that a selector has announced. Ignore a selector that is not connected."""
        if selector in self.connected:
            self._pipelines[selector] = {
                name: state.state for state in states for name in (state.spec.name, state.spec.key)
            }

    def route_query(self, query: Query, is_pipeline: bool) -> str:
        """Return the selector for a query.

        Queries for an application are routed by context. Queries for a cacheable model are routed by their inputs,
        other queries in turn. Those for a pipeline only go to selectors that have announced it.
        """
        if not query.model:
            return self.route_context(query.application, query.context)
        selectors = self._pipeline_selectors(query.model) if is_pipeline else self.connected
        if query.input_hash:
            return highest_ranked(selectors, query.input_hash)
        self._turn += 1
        return selectors[self._turn % len(selectors)] if selectors else ""

    def _pipeline_selectors(self, name: str) -> Sequence[str]:
        """Return the connected selectors whose drivers of the pipeline are READY, else LOADING.

        If none serves the pipeline, return all, which answer so, or none while one has not announced its pipelines.
        """
        for wanted in ("READY", "LOADING"):
            if serving := [selector for selector, states in self._pipelines.items() if states.get(name) == wanted]:
                return serving
        return self.connected if len(self._pipelines) == len(self.connected) else ()

    def route_context(self, application: str, context: str) -> str:
        """Return the selector for a context, among those that serve the current declaration of the application."""
        return highest_ranked(self._declared.serving_selectors(application), f"{application}\0{context}".encode())

    def route_prediction(self, application: str, prediction: bytes, context: str) -> str:
        """Return the selector that made a prediction. If it is not connected, route by context."""
        address = self._marks.get(prediction[:MARK_BYTES], "")
        if address in self._declared.serving_selectors(application):
            return address
        return self.route_context(application, context)

    def route_pipeline(self, name: str) -> str:
        """Return the selector that describes a pipeline, always the same while it is connected."""
        return highest_ranked(self._pipeline_selectors(name), name.encode())

    def route_declaration(self, application: str, context: str = "") -> str:
        """Return a selector that serves the current declaration. An undeclared one may go to any selector."""
        return self.route_context(application, context) or highest_ranked(self.connected, application.encode())


def highest_ranked(addresses: Sequence[str], key: bytes) -> str:
    """Return the address with the highest rank for the key: always the same while it is connected."""
    if len(addresses) < 2:
        return addresses[0] if addresses else ""
    return max(addresses, key=lambda address: (_rank(address, key), address))


def _rank(address: str, key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8, key=instance(address).encode()[-64:]).digest()
