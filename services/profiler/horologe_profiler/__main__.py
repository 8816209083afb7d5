"""`horologe-profiler`: the profiler in a process of its own, with the file it keeps what it has learned in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.service.service import Service
from horologe_profiler.core.profiler import Profiler
from horologe_profiler.settings import ProfilerSettings
from horologe_profiler.state_file import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.transport.reactor import Reactor

log = logger("profiler")


def main() -> None:
    service = Service("profiler")
    settings = service.settings(ProfilerSettings, "profiler")
    links = service.links(settings.name)
    core = Profiler(links.address("profiler", settings.name), settings)
    store = Store(settings.state, settings.name)
    if known := store.load():
        core.restore(monotonic_ns(), *known)
        log.info("remembered", parts=len(core.memory), minutes_ago=round(known[1] / 60e9, 1))

    def attach(reactor: Reactor) -> None:
        """A few milliseconds for the largest state: nobody waits for this loop."""

        def deliver(message: Any, buffers: Sequence[Buffer]) -> None:
            store.save(message)

        reactor.attach(core.store, deliver)

    service.run([core], links, prepare=attach)


if __name__ == "__main__":
    main()
