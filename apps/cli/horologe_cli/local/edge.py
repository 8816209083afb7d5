"""`horologe-edge`: frontend, selector and controller in one process; messages between them use no socket."""

from horologe_common.core.protocol import Core
from horologe_common.service.service import Service
from horologe_common.service.settings import SettingsError
from horologe_common.transport.reactor import Reactor
from horologe_common.transport.sockets import LinkSettings
from horologe_controller.core.controller import Controller
from horologe_controller.rollout_state import RolloutState
from horologe_controller.schedulers import check_scheduler
from horologe_controller.settings import ControllerSettings
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.digest import digest
from horologe_frontend.endpoints import client_endpoint
from horologe_frontend.grpc.settings import GrpcSettings
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.settings import FrontendSettings, client_limits, fit_frames
from horologe_frontend.tls import TlsSettings
from horologe_selector.bootstrap import HostedSelector
from horologe_selector.settings import SelectorSettings


def main() -> None:
    service = Service("edge")
    settings = service.settings(FrontendSettings, "frontend")
    limits = client_limits(settings, service.settings(LinkSettings, "links"))
    links = service.links(settings.name, settings.clients, limits)
    requests = fit_frames(settings, links.settings.max_frame_bytes)
    frontend = Frontend(links.address("frontend", settings.name), requests, digest)
    controller_settings = service.settings(ControllerSettings, "controller")
    try:
        check_scheduler(controller_settings)
        controller = Controller(links.address("controller"), controller_settings, links.host)
        state = RolloutState(controller)
        selector = HostedSelector(links, service.settings(SelectorSettings, "selector"))
    except SettingsError as error:
        service.reject(error)
    http, grpc = service.settings(HttpSettings, "http"), service.settings(GrpcSettings, "grpc")
    tls = service.settings(TlsSettings, "tls")
    try:
        endpoint = client_endpoint(frontend, http, grpc, tls, reuse_port=settings.reuse_port)
    except SettingsError as error:
        service.reject(error)
    cores: list[Core] = [frontend, selector.core, controller]

    def attach(reactor: Reactor) -> None:
        """Connect the selector to its store, and the controller to its state file."""
        selector.attach(reactor)
        state.attach(reactor)

    service.run(
        cores,
        links,
        client_core=frontend.address,
        start=[selector.run_drivers],
        endpoints=[endpoint],
        prepare=attach,
    )
    selector.close()


if __name__ == "__main__":
    main()
