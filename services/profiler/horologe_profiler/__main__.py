"""`horologe-profiler`: the profiler process. Connects the profiler core and its state file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.service.service import Service
from horologe_common.service.settings import SettingsError
from horologe_common.service.state_file import StateFile, check_writable
from horologe_profiler.core.measurements import ProfilerState
from horologe_profiler.core.profiler import Profiler
from horologe_profiler.settings import ProfilerSettings

if TYPE_CHECKING:
    from horologe_common.transport.reactor import Reactor

log = logger("profiler")


def main() -> None:
    service = Service("profiler")
    settings = service.settings(ProfilerSettings, "profiler")
    links = service.links()
    core = Profiler(links.address("profiler"), settings)
    try:
        check_writable(settings.state, "profiler.state")
    except SettingsError as error:
        service.reject(error)
    store = StateFile(ProfilerState, settings.state, "profiler")

    def restore(state: ProfilerState, age_ns: int) -> list[str]:
        dropped = core.restore(monotonic_ns(), state, age_ns)
        log.info("state restored", keys=len(core.measurements), age_minutes=round(age_ns / 60e9, 1))
        return dropped

    store.restore(restore)

    def attach(reactor: Reactor) -> None:
        """Write the state file on the event loop's thread: a few milliseconds for the largest state."""
        reactor.attach(core.store, lambda message, buffers: store.save(message))

    service.run([core], links, prepare=attach)


if __name__ == "__main__":
    main()
