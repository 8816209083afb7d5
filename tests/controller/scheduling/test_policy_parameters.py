"""Parameters of scheduling policies: the table `[controller.policy]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_common.service.settings import SettingsError, load_settings
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.schedulers import SCHEDULERS, check_scheduler
from horologe_controller.schedulers.clipper import Clipper
from horologe_controller.settings import ControllerSettings

if TYPE_CHECKING:
    from pathlib import Path


def test_parameters_come_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "horologe.toml"
    file.write_text('[controller]\nscheduler = "clipper"\n[controller.policy]\ndelay_ns = "3ms"\nincrease = 4\n')
    variables = {"HOROLOGE_CONTROLLER_POLICY_INCREASE": "2", "HOROLOGE_CONTROLLER_POLICY_BACKOFF": "0.5"}
    settings = load_settings(
        ControllerSettings,
        "controller",
        file,
        variables,
        {"policy.backoff": "0.7", "policy.quantile_regression": "true"},
    )
    parameters = Clipper(settings, Cluster()).parameters
    assert (parameters.delay_ns, parameters.increase, parameters.backoff) == (3_000_000, 2.0, 0.7)
    assert parameters.quantile_regression


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(scheduler: str) -> None:
    wanted = f"setting controller.policy.speed: unknown; the parameters of {scheduler} are window_ns"
    with pytest.raises(SettingsError, match=wanted):
        check_scheduler(ControllerSettings(scheduler=scheduler, policy={"speed": 1}))


@pytest.mark.parametrize(
    ("scheduler", "policy", "wanted"),
    [
        ("nexus", {"slo_part": 2}, "controller.policy.slo_part: got 2, wanted more than 0, at most 1"),
        ("orloj", {"order": "any"}, "controller.policy.order: got 'any', wanted one of earliest, latest"),
        ("clipper", {"delay_ns": "3"}, "controller.policy.delay_ns: got '3', wanted a number with one of ns, us"),
        ("horologe", {"increase": 1}, "controller.policy.increase: unknown; the parameters of horologe are"),
    ],
)
def test_a_wrong_parameter_is_an_error(
    scheduler: str, policy: dict[str, bool | int | float | str], wanted: str
) -> None:
    with pytest.raises(SettingsError, match=wanted):
        check_scheduler(ControllerSettings(scheduler=scheduler, policy=policy))


def test_the_table_must_be_a_table(tmp_path: Path) -> None:
    file = tmp_path / "horologe.toml"
    file.write_text("[controller]\npolicy = 5\n")
    with pytest.raises(SettingsError, match=r"controller\.policy: got 5, wanted a table"):
        load_settings(ControllerSettings, "controller", file, {})
    with pytest.raises(SettingsError, match=r"controller\.policy: got '5', wanted a table"):
        load_settings(ControllerSettings, "controller", None, {}, {"policy": "5", "policy.advance": "1"})


def test_another_scheduler_does_not_get_the_parameters() -> None:
    settings = ControllerSettings(policy={"advance": 0.5, "window_ns": 1}, max_queued=7)
    assert settings.with_scheduler("nexus").policy == {}
    assert settings.with_scheduler("nexus").max_queued == 7
    assert settings.with_scheduler("horologe") == settings


@pytest.mark.parametrize("name", ["auto", ""])
def test_an_unknown_scheduler_is_an_error_that_names_the_known_ones(name: str) -> None:
    wanted = f"setting controller.scheduler: got {name!r}, wanted one of {', '.join(SCHEDULERS)}$"
    with pytest.raises(SettingsError, match=wanted):
        check_scheduler(ControllerSettings(scheduler=name))
