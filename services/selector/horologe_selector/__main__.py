"""`horologe-selector`: a selector in a process of its own."""

from horologe_common.service.service import Service
from horologe_common.service.settings import SettingsError
from horologe_selector.bootstrap import HostedSelector
from horologe_selector.settings import SelectorSettings


def main() -> None:
    service = Service("selector")
    settings = service.settings(SelectorSettings, "selector")
    links = service.links(settings.name)
    try:
        selector = HostedSelector(links, settings)
    except SettingsError as error:
        service.reject(error)
    service.run([selector.core], links, start=[selector.run_drivers], prepare=selector.attach)
    selector.close()


if __name__ == "__main__":
    main()
