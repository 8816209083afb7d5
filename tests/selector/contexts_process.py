"""A process that observes numbers in order, and prints those whose observation is durable, one per line.

python contexts_process.py SETTINGS ADDRESS FIRST COUNT CONTEXTS        # SETTINGS as JSON
"""

from __future__ import annotations

import os
import queue
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from horologe_selector.core.contexts.contexts import Contexts
from horologe_selector.settings import SelectorSettings
from horologe_selector.store import StoreTimes
from horologe_selector.stores import open_store
from horologe_selector.stores.store_writer import StoreWriter
from selector.contexts_harness import BOTH, A, make_active_application

BATCH = 7
POLL_S = 0.01


def main(settings: SelectorSettings, times: StoreTimes, address: str, first: int, count: int, many: int) -> None:
    store, running = open_store(settings), make_active_application()
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = StoreWriter(store, replies.put, retry_ns=times.retry_ns)
    contexts = Contexts(settings, address, store.shared, writer.deliver, times)
    writer.start()
    at, saved = first, 0
    while saved < count:
        now_ns = time.monotonic_ns()
        while not replies.empty():
            contexts.on_store_reply(now_ns, replies.get())
        if contexts.unsaved < settings.unsaved:
            for number in range(at, min(at + BATCH, first + count)):
                contexts.observe(now_ns, running, str(number % many), BOTH, {A: float(number)}, number)
                at = number + 1
        contexts.tick(now_ns)
        tokens, contexts.saved = contexts.saved, []
        saved += len(tokens)
        os.write(1, b"".join(b"%d\n" % token for token in tokens))
        if at == first + count or contexts.unsaved >= settings.unsaved:
            time.sleep(POLL_S)
    contexts.check()
    writer.stop()


if __name__ == "__main__":
    _, settings, times, address, *numbers = sys.argv
    main(
        msgspec.json.decode(settings, type=SelectorSettings),
        msgspec.json.decode(times, type=StoreTimes),
        address,
        *map(int, numbers),
    )
