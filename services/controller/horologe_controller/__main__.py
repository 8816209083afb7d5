"""`horologe-controller`: the controller in a process of its own."""

from horologe_common.service.service import Service
from horologe_common.service.settings import SettingsError
from horologe_controller.core.controller import Controller
from horologe_controller.rollout_state import RolloutState
from horologe_controller.schedulers import check_scheduler
from horologe_controller.settings import ControllerSettings


def main() -> None:
    service = Service("controller")
    settings = service.settings(ControllerSettings, "controller")
    links = service.links()
    core = Controller(links.address("controller"), settings, links.host)
    try:
        check_scheduler(settings)
        state = RolloutState(core)
    except SettingsError as error:
        service.reject(error)
    service.run([core], links, prepare=state.attach)


if __name__ == "__main__":
    main()
