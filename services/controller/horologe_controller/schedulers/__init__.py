"""The schedulers by name."""

from collections.abc import Callable

from horologe_controller.core.scheduling.scheduler import Scheduler
from horologe_controller.schedulers.clipper import Clipper
from horologe_controller.schedulers.clockwork import Clockwork
from horologe_controller.schedulers.deferred import Deferred
from horologe_controller.schedulers.edf import Edf
from horologe_controller.schedulers.fifo import Fifo
from horologe_controller.schedulers.horologe import Horologe
from horologe_controller.schedulers.nexus import Nexus
from horologe_controller.schedulers.orloj.orloj import Orloj
from horologe_controller.settings import ControllerSettings

SCHEDULERS: dict[str, Callable[[ControllerSettings], Scheduler]] = {
    "clockwork": Clockwork,
    "edf": Edf,
    "clipper": Clipper,
    "nexus": Nexus,
    "deferred": Deferred,
    "fifo": Fifo,
    "horologe": Horologe,
    "orloj": Orloj,
}
