"""`horologe-frontend`: a frontend in a process of its own, with its HTTP door."""

from horologe_common.service import Service
from horologe_frontend.core import Frontend
from horologe_frontend.digest import digest
from horologe_frontend.door import http_door
from horologe_frontend.http_settings import HttpSettings
from horologe_frontend.settings import Settings


def main() -> None:
    service = Service("frontend")
    settings = service.settings(Settings, "frontend")
    links = service.links(settings.name, settings.clients)
    core = Frontend(links.address("frontend", settings.name), settings, digest)
    door = http_door(core, service.settings(HttpSettings, "http"))
    service.run([core], links, client_core=core.address, start=[door])


if __name__ == "__main__":
    main()
