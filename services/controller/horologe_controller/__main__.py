"""`horologe-controller`: the controller in a process of its own."""

from horologe_common.service import Service
from horologe_controller.core import Controller
from horologe_controller.settings import Settings


def main() -> None:
    service = Service("controller")
    settings = service.settings(Settings, "controller")
    links = service.links(settings.name)
    service.run([Controller(links.address("controller", settings.name), settings, links.host)], links)


if __name__ == "__main__":
    main()
