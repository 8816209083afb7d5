"""`horologe-controller`: the controller in a process of its own."""

from horologe_common.service.service import Service
from horologe_common.service.settings import SettingsError
from horologe_controller.core.controller import Controller
from horologe_controller.schedulers import check_scheduler
from horologe_controller.settings import ControllerSettings


def main() -> None:
    service = Service("controller")
    settings = service.settings(ControllerSettings, "controller")
    links = service.links()
    try:
        check_scheduler(settings)
    except SettingsError as error:
        service.reject(error)
    service.run([Controller(links.address("controller"), settings, links.host)], links)


if __name__ == "__main__":
    main()
