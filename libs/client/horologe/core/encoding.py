"""Inputs made into tensors by their model's signature; where that is not known, it is asked for first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe.core.call import Call
from horologe.core.signature import tensors_of
from horologe.core.signature_cache import Fetch
from horologe_common.clock import s
from horologe_common.status import HorologeError, InvalidInput, Lost
from horologe_common.wire import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe.core.outbox import Outbox
    from horologe.core.pending_requests import Book
    from horologe.core.signature import Signature
    from horologe.core.signature_cache import Catalogue
    from horologe_common.wire import ModelState

ASK_NS = s(1)
"""A question for a signature that brought nothing within this time is asked again."""


class Encoder:
    """Between a session's requests and its outbox. `ids`: of requests, of which a question takes one too."""

    def __init__(self, catalogue: Catalogue, book: Book, outbox: Outbox, ids: Iterator[int]) -> None:
        self._catalogue = catalogue
        self._book = book
        self._outbox = outbox
        self._ids = ids
        self.now_ns = 0

    def take(self, call: Call, inputs: Any) -> None:
        """Open a request; it goes out when its inputs are encoded. Raises what is wrong with them."""
        signature = self._catalogue.known.get(call.subject)
        if signature is not None:
            self._encode(call, inputs, signature)
            return
        self._book.open(call)
        if self._catalogue.park(call, inputs):
            self._fetch(ModelInfo(0, call.model, "" if call.model else call.application))

    def _encode(self, call: Call, inputs: Any, signature: Signature) -> None:
        try:
            call.inputs, call.buffers = tensors_of(signature, inputs)
        except InvalidInput:
            self._catalogue.forget(call)
            raise
        self._book.open(call, signature.slo_ns)
        self._book.grow(call, sum(map(len, call.buffers)))
        self._outbox.add(call)

    def _fetch(self, question: ModelInfo) -> None:
        call = Call(next(self._ids), Fetch(question, self._fetched), self.now_ns, ASK_NS)
        call.question = msgspec.structs.replace(question, id=call.id)
        self._book.open(call)
        self._outbox.add(call)

    def _fetched(self, question: ModelInfo, states: Sequence[ModelState] | HorologeError) -> None:
        for call, inputs in self._catalogue.waiting(question):
            if call not in self._book:
                continue
            if isinstance(states, Lost):
                if self._catalogue.park(call, inputs):
                    self._fetch(question)
                continue
            try:
                if isinstance(states, HorologeError):
                    raise type(states)(states.reason)
                self._encode(call, inputs, self._catalogue.learn(call, states))
            except HorologeError as error:
                self._book.end(call, error)
