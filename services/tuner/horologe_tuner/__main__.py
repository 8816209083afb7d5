"""`horologe-tuner`: the tuner process. Connects the tuner core, its state file, its scaler and the log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from horologe_common.clock import monotonic_ns
from horologe_common.service.log import logger
from horologe_common.service.service import Service
from horologe_common.service.state_file import StateFile, check_writable
from horologe_common.status import HorologeError
from horologe_tuner.call_thread import CallThread
from horologe_tuner.core.tuner import Tuner, TunerState
from horologe_tuner.rehearsal_process import is_installed, run_rehearsal
from horologe_tuner.scaler import scale
from horologe_tuner.scalers import create_scaler
from horologe_tuner.settings import TunerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.transport.reactor import Reactor

log = logger("tuner")


def main() -> None:
    service = Service("tuner")
    settings = service.settings(TunerSettings, "tuner")
    links = service.links()
    core = Tuner(links.address("tuner"), settings, rehearses=is_installed())
    if not is_installed():
        log.info("rehearsals off", reason="horologe_sim is not installed: controller.scheduler auto uses the default")
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
            write = log.warning if entry.event in ("blind", "scaler failed", "rehearsal failed") else log.info
            write(entry.event, subject=entry.subject, what=entry.text, dry_run=entry.dry_run)

        reactor.attach(core.store, save)
        reactor.attach(core.journal, write_log)

        def answer_on_thread(name: str, address: str, answer: Callable[[Any], Any]) -> None:
            thread = CallThread(name, answer, lambda answered: reactor.post_threadsafe(address, core.address, answered))
            reactor.attach(address, lambda message, buffers: thread.call(message))
            thread.start()

        answer_on_thread("rehearsal", core.rehearsal, run_rehearsal)
        if scaler is not None:
            answer_on_thread("scaler", core.scaler, partial(scale, scaler))

    service.run([core], links, prepare=attach)


if __name__ == "__main__":
    main()
