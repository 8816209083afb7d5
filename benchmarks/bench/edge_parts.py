"""Parts of the edge's work on a request over HTTP, and to which of them a sampled call stack belongs."""

from __future__ import annotations

import linecache
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Frame = Sequence[Any]
    """File, qualified name, line, first line of the function."""

READ, WRITE = "read the request: uvloop, `read`", "write the response: uvloop, `write`"
TURNS = "turns: reactor, mailboxes, alarm"
HOP_READ, HOP_WRITE = "hop to the worker: uvloop, `read`", "hop to the worker: uvloop, `writev`"
HOP = "hop to the worker: packets, msgpack"
FRAMING, ACCOUNTS = "HTTP: heads, connection", "HTTP: limits of clients"
DECODE, ENCODE, HEAD = "decode the body", "encode the body", "encode the head"
GATEWAY, FRONTEND, CONTROLLER = "gateway", "frontend core", "controller core"
METRICS = "counters, histograms, quantiles"
OTHER = "other"
PARTS = (
    READ, FRAMING, ACCOUNTS, DECODE, GATEWAY, FRONTEND, CONTROLLER, METRICS, TURNS, HOP, HOP_WRITE, HOP_READ, ENCODE,
    HEAD, WRITE, OTHER,
)  # fmt: skip
"""Parts in the order of a request."""

RULES = (
    ("horologe_frontend/http/connection.py", "encode_head", HEAD),
    ("horologe_frontend/http/connection.py", "_head_begin", HEAD),
    ("horologe_frontend/http/client_accounts.py", "", ACCOUNTS),
    ("horologe_common/core/accounts.py", "", ACCOUNTS),
    ("horologe_frontend/http/", "", FRAMING),
    ("horologe_common/transport/clients/fair_turns.py", "", FRAMING),
    ("horologe_frontend/oip/handler.py", "OipHandler._on_answer", ENCODE),
    ("horologe_frontend/oip/inference_response.py", "", ENCODE),
    ("horologe_frontend/oip/response_json.py", "", ENCODE),
    ("horologe_frontend/oip/", "", DECODE),
    ("horologe_frontend/gateway.py", "", GATEWAY),
    ("horologe_frontend/core/stats.py", "", METRICS),
    ("horologe_common/core/instruments.py", "", METRICS),
    ("horologe_controller/core/actions.py", "ActionMetrics", METRICS),
    ("horologe_frontend/", "", FRONTEND),
    ("horologe_controller/", "", CONTROLLER),
    ("horologe_common/core/hosting.py", "", TURNS),
    ("horologe_common/transport/reactor.py", "", TURNS),
    ("horologe_common/transport/alarm.py", "", TURNS),
    ("horologe_common/transport/socket_readiness.py", "", TURNS),
    ("horologe_common/transport/clients/", "", TURNS),
    ("horologe_common/transport/", "", HOP),
    ("horologe_common/wire/", "", HOP),
)
"""End of the folder or file, begin of the qualified name, part. The first rule that fits counts."""
ENTRIES = {"HttpConnection.data_received": READ, "Stream.data_received": HOP_READ, "Reactor._turn": TURNS}
"""Functions that uvloop calls. A sample that is due in uvloop is taken at the begin of the next one."""
WRITES = {"HttpConnection._write": WRITE, "Stream.send": HOP_WRITE}


def part_of(stack: Sequence[Frame]) -> str:
    """Return the part of a call stack, whose innermost frame is the first."""
    path, name, line, first_line = stack[0]
    if line == first_line and name in ENTRIES:
        return ENTRIES[name]
    if name in WRITES and "transport.write" in linecache.getline(path, line):
        return WRITES[name]
    return next((part for frame in stack if (part := _part_of_frame(frame))), OTHER)


def _part_of_frame(frame: Frame) -> str:
    """Return the part of a function; an empty text for one that several parts call."""
    path, name = frame[0], frame[1]
    return next((part for place, begin, part in RULES if place in path and name.startswith(begin)), "")


def count_parts(stacks: Iterable[tuple[Sequence[Frame], int]]) -> dict[str, float]:
    """Return the share of the samples of each part, in the order of `PARTS`."""
    counts: Counter[str] = Counter()
    for stack, count in stacks:
        counts[part_of(stack)] += count
    total = max(1, counts.total())
    return {part: counts[part] / total for part in PARTS}


def count_functions(stacks: Iterable[tuple[Sequence[Frame], int]]) -> list[tuple[str, float]]:
    """Return the functions with the share of samples of their own, without those that they call, largest first."""
    counts: Counter[str] = Counter()
    for stack, count in stacks:
        path, name = stack[0][:2]
        counts[f"{'/'.join(path.split('/')[-2:])}: {name}"] += count
    total = max(1, counts.total())
    return [(name, count / total) for name, count in counts.most_common()]
