"""Description of the cluster for operators: which model is served worst, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from controller.controller_builders import FRONTEND, a_controller, submit
from harness.builders import a_report, a_spec, sent
from horologe_common.clock import ms
from horologe_common.wire import Describe, Description

if TYPE_CHECKING:
    from horologe_controller.core.controller import Controller


def described(controller: Controller) -> Description:
    controller.handle(ms(1), FRONTEND, Describe(1), ())
    (description,) = sent(controller, Description, FRONTEND)
    return description


def test_operators_see_which_model_is_served_worst_and_why() -> None:
    controller = a_controller("horologe", (a_report(a_spec("usual")), a_report(a_spec("costly"))))
    traffic = controller.scheduler.policy.traffic
    assert traffic is not None
    for number, (model, served) in enumerate((("usual/1", 39.0), ("costly/1", 10.0))):
        submit(controller, number, model=model)
        traffic.of_model(model).arrived, traffic.of_model(model).served = 40.0, served
    wanted = r"costly/1: 25% of its requests are served, 61% of a model's on average: a request alone takes .* ms, one"
    assert re.match(wanted, described(controller).worst_served)
    traffic.of_model("costly/1").served = 40.0
    traffic.of_model("usual/1").served = 40.0
    controller.out.clear()
    assert described(controller).worst_served == ""
