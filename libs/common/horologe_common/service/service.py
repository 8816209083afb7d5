"""The main program of every service: reads settings, opens links, runs cores, exports metrics."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar, runtime_checkable

import msgspec

from horologe_common.core.instruments import Stats
from horologe_common.metrics.endpoint import MetricsSettings, serve_metrics
from horologe_common.metrics.process_stats import process_stats
from horologe_common.recording.recorder import RecorderSettings, install
from horologe_common.service.log import LogSettings, configure, logger
from horologe_common.service.process_limits import protect_memory, raise_limit, return_large_blocks
from horologe_common.service.settings import SECTIONS, SettingsError, load_settings, unknown_section
from horologe_common.service.standard_streams import install_lossy_streams, lost_bytes
from horologe_common.service.state_file import check_writable
from horologe_common.service.trace_export import TracingSettings, start_tracing
from horologe_common.transport.links import Links
from horologe_common.transport.reactor import Reactor
from horologe_common.transport.sockets import LinkSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Core
    from horologe_common.status import HorologeError
    from horologe_common.transport.clients.client_server import ClientLimits
    from horologe_common.transport.reactor import Task


@runtime_checkable
class RefreshesStats(Protocol):
    """A core that computes some of its metrics from its state when they are exported."""

    def refresh_stats(self) -> None:
        """Update these metrics."""


REFRESH_S = 2.0
SETTINGS_STATUS = 2
S = TypeVar("S", bound=msgspec.Struct)
log = logger("service")


class Service:
    """A service process. Settings come from the file of --config, the environment, and --set section.field=value."""

    def __init__(self, name: str, argv: Sequence[str] | None = None) -> None:
        install_lossy_streams()
        parser = argparse.ArgumentParser(prog=f"horologe-{name}")
        parser.add_argument("--config", metavar="FILE", help="TOML file with a table per section")
        parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", dest="flags")
        arguments = parser.parse_args(argv)
        self.name = name
        self._file: str | None = arguments.config or os.environ.get("HOROLOGE_CONFIG")
        self._flags: dict[str, dict[str, str]] = {}
        for flag in arguments.flags:
            place, equals, value = flag.partition("=")
            section, dot, field = place.partition(".")
            if not (equals and dot):
                parser.error(f"--set {flag}: wanted SECTION.FIELD=VALUE")
            if section not in SECTIONS:
                self.reject(SettingsError(f"--set {flag}: {unknown_section(section)}"))
            self._flags.setdefault(section, {})[field] = value
        configure(self.settings(LogSettings, "log"), name)
        raise_limit()
        return_large_blocks()

    def settings(self, kind: type[S], section: str) -> S:
        """Return the settings of a section. End the process with a message if one is invalid."""
        try:
            return load_settings(kind, section, self._file, os.environ, self._flags.get(section))
        except SettingsError as error:
            self.reject(error)

    def reject(self, error: HorologeError) -> NoReturn:
        """End the process with status 2, as for a wrong option, because of a setting."""
        sys.stderr.write(f"horologe-{self.name}: {error.reason}\n")
        raise SystemExit(SETTINGS_STATUS) from None

    def links(self, number: str = "0", clients: Sequence[str] = (), client_limits: ClientLimits | None = None) -> Links:
        """Return the links of this process, not yet open. `clients`: endpoints for clients."""
        return Links(f"{self.name}/{number}", boot_id(), self.settings(LinkSettings, "links"), clients, client_limits)

    def run(
        self,
        cores: Sequence[Core],
        links: Links,
        *,
        client_core: str = "",
        follows_directory: bool = False,
        start: Sequence[Task] = (),
        endpoints: Sequence[Task] = (),
        prepare: Callable[[Reactor], None] | None = None,
        more_stats: Callable[[], Stats] | None = None,
    ) -> None:
        """Run until SIGTERM. `prepare` gets the reactor before it runs. `start` and `endpoints`: see `Reactor`.

        `more_stats` returns further metrics. It is called by the thread that renders them, and may block.
        """
        protect_memory()
        reactor = Reactor(cores, links)
        reactor.start, reactor.endpoints = start, endpoints
        if prepare:
            prepare(reactor)
        try:
            links.open([core.address for core in cores], client_core, follows_directory)
            end_tracing = start_tracing(reactor, cores, self.settings(TracingSettings, "tracing"), self.name)
            exporter = serve_metrics(
                self.settings(MetricsSettings, "metrics"),
                lambda: [*_stats(reactor, self.name), *([more_stats()] if more_stats else [])],
                lambda: links.is_ready() and not reactor.is_stopping,
            )
            recorder_settings = self.settings(RecorderSettings, "recorder")
            check_writable(recorder_settings.directory, "recorder.directory")
        except SettingsError as error:
            links.abandon()
            self.reject(error)
        log.info("ready", cores=[core.address for core in cores])
        recorder = install(reactor.core_host, recorder_settings, re.sub(r"\W+", "-", cores[0].address))
        try:
            reactor.run()
        except SettingsError as error:  # of an endpoint, such as the HTTP server
            self.reject(error)
        if end_tracing:
            end_tracing()
        if recorder:
            recorder.write("stop")
        if exporter:
            exporter.stop()
        log.info("stopped")


def _stats(reactor: Reactor, service: str) -> list[Stats]:
    """Return the metrics of all cores. A process that is stopped or busy for longer shows those of the last refresh."""
    with contextlib.suppress(TimeoutError):
        reactor.call_between_turns(lambda: _refresh_stats(reactor), REFRESH_S)
    own = process_stats(service)
    own.count("horologe_messages_dropped_total", by=reactor.links.dropped + reactor.core_host.dropped)
    own.count("horologe_core_faults_total", by=reactor.core_host.faults)
    own.count("horologe_log_lost_bytes_total", by=lost_bytes())
    own.count("horologe_clients_rejected_total", by=reactor.links.client_server.rejected)
    peers = reactor.links.peers
    own.set("horologe_links_connected", to=peers.count_links())
    return [own, peers.stats, *(core.stats for core in reactor.core_host if hasattr(core, "stats"))]


def _refresh_stats(reactor: Reactor) -> None:
    for core in reactor.core_host:
        if isinstance(core, RefreshesStats):
            core.refresh_stats()


def boot_id() -> str:
    """Return the machine's boot id, empty if it has none. Processes with equal ids share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
