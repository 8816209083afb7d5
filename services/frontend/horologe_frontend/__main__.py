"""`horologe-frontend`: a frontend with its HTTP server, in a separate process."""

from horologe_common.service.service import Service
from horologe_common.service.settings import SettingsError
from horologe_common.transport.sockets import LinkSettings
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.digest import digest
from horologe_frontend.endpoints import client_endpoint
from horologe_frontend.grpc.settings import GrpcSettings
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.settings import FrontendSettings, client_limits, fit_frames
from horologe_frontend.tls import TlsSettings


def main() -> None:
    service = Service("frontend")
    settings = service.settings(FrontendSettings, "frontend")
    limits = client_limits(settings, service.settings(LinkSettings, "links"))
    links = service.links(settings.name, settings.clients, limits)
    requests = fit_frames(settings, links.settings.max_frame_bytes)
    core = Frontend(links.address("frontend", settings.name), requests, digest)
    http, grpc = service.settings(HttpSettings, "http"), service.settings(GrpcSettings, "grpc")
    tls = service.settings(TlsSettings, "tls")
    try:
        endpoint = client_endpoint(core, http, grpc, tls, reuse_port=settings.reuse_port)
    except SettingsError as error:
        service.reject(error)
    service.run([core], links, client_core=core.address, endpoints=[endpoint])


if __name__ == "__main__":
    main()
