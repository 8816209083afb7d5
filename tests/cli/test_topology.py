"""Specifications and addresses of the processes of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_cli.local.topology import SystemOptions, build_topology
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import WantedShare

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = SystemOptions(http="127.0.0.1:0", clients=("tcp://127.0.0.1:0",), metrics="off")


def test_shares_have_the_mechanism_of_all_workers_unless_they_name_one(tmp_path: Path) -> None:
    options = SystemOptions(str(tmp_path), metrics="off", sets=("worker.share_mechanism=cpu",))
    topology = build_topology(options, tmp_path / "private", {})
    for mechanism, wanted in (("auto", "cpu"), ("emulated", "emulated")):
        child = topology.create_share(WantedShare("left", "host", "cpu", 50, mechanism))
        flags = [argument for argument in child.arguments if "share_mechanism" in argument]
        assert flags[-1] == f"--set=worker.share_mechanism={wanted}"


def test_the_worker_of_a_share_gets_its_settings_and_a_file_of_its_emulated_device(tmp_path: Path) -> None:
    topology = build_topology(SystemOptions(str(tmp_path), metrics="off"), tmp_path / "private", {})
    child = topology.create_share(WantedShare("left", "host/gpu:0", "v100", 37.5))
    assert child.name == "worker-left"
    assert {
        "--set=worker.name=left",
        "--set=worker.hardware=v100",
        "--set=worker.device_id=host/gpu:0",
        "--set=worker.share_percent=37.5",
        f"--set=worker.emulated_device={tmp_path / 'private' / 'emulated-host-gpu-0'}",
    } <= set(child.arguments)
    gpu = topology.create_share(WantedShare("right", "GPU-5a", "h100", 50, "mps"))
    assert {"--set=worker.device=cuda", "--set=worker.share_mechanism=mps"} <= set(gpu.arguments)


def test_a_star_is_any_free_port(tmp_path: Path) -> None:
    options = OPTIONS._replace(models=str(tmp_path), clients=("tcp://127.0.0.1:*",))
    (endpoint,) = build_topology(options, tmp_path, {}).clients
    assert int(endpoint.removeprefix("tcp://127.0.0.1:")) > 0


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS._replace(clients=("tcp://lo:*",)),
        OPTIONS._replace(clients=("tcp://lo:0",)),
        OPTIONS._replace(http="lo:0"),
        OPTIONS._replace(metrics="lo:0"),
    ],
)
def test_the_name_of_an_interface_is_no_host(tmp_path: Path, options: SystemOptions) -> None:
    with pytest.raises(SettingsError, match=r"lo.* cannot be used"):
        build_topology(options._replace(models=str(tmp_path), insecure=True), tmp_path, {})
