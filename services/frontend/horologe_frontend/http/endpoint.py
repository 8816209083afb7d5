"""The HTTP door of a frontend process: Open Inference Protocol requests become messages to the core beside it."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_frontend.auth import Keys
from horologe_frontend.gateway import ReactorPort
from horologe_frontend.http.listener import HttpServer
from horologe_frontend.oip.handler import Oip

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from horologe_common.transport.reactor import Reactor
    from horologe_frontend.core.frontend import Frontend
    from horologe_frontend.http.settings import HttpSettings

log = logger("http")


def http_door(core: Frontend, settings: HttpSettings) -> Callable[[Reactor], Coroutine[Any, Any, None]]:
    """A coroutine for `Service.run`: serve until cancelled, then drain."""

    async def door(reactor: Reactor) -> None:
        port = ReactorPort(reactor, core.address.replace("frontend/", "http/"), core)
        port.open()
        server = HttpServer(settings, Oip(port, settings, Keys.read(settings.keys_file), version("horologe")))
        await server.start()
        log.info("http", url=server.url)
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop()

    return door
