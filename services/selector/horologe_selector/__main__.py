"""`horologe-selector`: a selector in a process of its own."""

import random

from horologe_common.service import Service
from horologe_selector.core import Selector
from horologe_selector.settings import Settings


def main() -> None:
    service = Service("selector")
    settings = service.settings(Settings, "selector")
    links = service.links(settings.name)
    selector = Selector(links.address("selector", settings.name), settings, random.Random())
    service.run([selector], links)


if __name__ == "__main__":
    main()
