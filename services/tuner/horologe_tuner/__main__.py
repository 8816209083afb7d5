"""`horologe-tuner`: the tuner process. Connects the tuner core, its state file, its scaler and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.service.service import Service
from horologe_common.service.state_file import StateFile, check_writable
from horologe_common.status import HorologeError
from horologe_tuner.core.tuner import Tuner, TunerState
from horologe_tuner.scaler import ScalerThread
from horologe_tuner.scalers import create_scaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.transport.reactor import Reactor

log = logger("tuner")


def main() -> None:
    service = Service("tuner")
    settings = service.settings(TunerSettings, "tuner")
    links = service.links()
    core = Tuner(links.address("tuner"), settings)
    store = StateFile(TunerState, settings.state, "tuner")
    try:
        check_writable(settings.state, "tuner.state")
        scaler = create_scaler(settings)
    except HorologeError as error:
        service.reject(error)

    def restore(state: TunerState, age_ns: int) -> list[str]:
        dropped = core.restore(monotonic_ns(), state)
        log.info("state restored", plans=[*core.plans.plans], age_minutes=round(age_ns / 60e9, 1))
        return dropped

    store.restore(restore)

    def attach(reactor: Reactor) -> None:
        """Pass the core's messages to the state file, the log and the thread of the scaler."""

        def save(message: Any, buffers: Sequence[Buffer]) -> None:
            store.save(message)

        def write_log(entry: Any, buffers: Sequence[Buffer]) -> None:
            write = log.warning if entry.event in ("blind", "scaler failed") else log.info
            write(entry.event, subject=entry.subject, what=entry.text, dry_run=entry.dry_run)

        reactor.attach(core.store, save)
        reactor.attach(core.journal, write_log)

        if scaler is not None:
            thread = ScalerThread(scaler, lambda scaled: reactor.post_threadsafe(core.scaler, core.address, scaled))
            reactor.attach(core.scaler, lambda message, buffers: thread.call(message))
            thread.start()

    service.run([core], links, prepare=attach)


if __name__ == "__main__":
    main()
