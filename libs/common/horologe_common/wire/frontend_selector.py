"""Frontend - selector."""

from __future__ import annotations

from horologe_common.wire.message import Message


class Query(Message, frozen=True, tag=20):
    """A validated request. Its inputs are staged at the sender under `id`; `input_hash` only if caching is on.

    With an empty `model` it is for the `application`; it has an `input_hash` then, for feedback to join.

    Requests of a model with variable dimensions share a batch only if their `shape_key` is equal. It is 0 if the model
    pads its inputs. `length` is the size of the input in those dimensions, 0 if all are fixed.
    """

    id: int
    model: str
    budget_ns: int
    rows: int
    input_hash: bytes = b""
    best_effort: bool = False
    shape_key: int = 0
    length: int = 0
    application: str = ""
    context: str = ""


class Release(Message, frozen=True, tag=21):
    """The staged inputs under these ids are not needed any more."""

    ids: tuple[int, ...]
