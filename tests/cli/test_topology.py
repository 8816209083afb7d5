"""Specifications and addresses of the processes of one machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from horologe_cli.local.layout import Gpu, Machine
from horologe_cli.local.topology import SystemOptions, Topology, build_topology
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import WantedShare
from horologe_selector.settings import SelectorSettings
from horologe_selector.stores.sqlite import open_sqlite

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = SystemOptions(http="127.0.0.1:0", clients=("tcp://127.0.0.1:0",), metrics="off")


def test_shares_have_the_mechanism_of_all_workers_unless_they_name_one(tmp_path: Path) -> None:
    options = OPTIONS._replace(models=str(tmp_path), sets=("worker.share_mechanism=cpu",))
    topology = build_topology(options, tmp_path / "private", {})
    for mechanism, wanted in (("auto", "cpu"), ("emulated", "emulated")):
        child = topology.create_share(WantedShare("left", "host", "cpu", 50, mechanism))
        flags = [argument for argument in child.arguments if "share_mechanism" in argument]
        assert flags[-1] == f"--set=worker.share_mechanism={wanted}"


def test_the_worker_of_a_share_gets_its_settings_and_a_file_of_its_emulated_device(tmp_path: Path) -> None:
    topology = build_topology(OPTIONS._replace(models=str(tmp_path)), tmp_path / "private", {})
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


def flag_of(topology: Topology, setting: str) -> list[str]:
    """Return the values of a setting in the arguments of the edge."""
    (edge,) = [child for child in topology.children if child.name == "edge"]
    return [argument.partition("=")[2].partition("=")[2] for argument in edge.arguments if f"={setting}=" in argument]


def test_grpc_has_an_address_that_the_edge_gets(tmp_path: Path) -> None:
    """With any free port for HTTP, gRPC gets one too."""
    topology = build_topology(OPTIONS._replace(models=str(tmp_path)), tmp_path, {})
    host, _, port = topology.grpc.rpartition(":")
    assert host == "127.0.0.1"
    assert flag_of(topology, "grpc.port") == [port]
    chosen = build_topology(OPTIONS._replace(models=str(tmp_path), grpc=topology.grpc), tmp_path, {})
    assert chosen.grpc == topology.grpc


def test_grpc_may_be_off_or_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OPTIONS._replace(models=str(tmp_path))
    off = build_topology(options._replace(grpc="off"), tmp_path, {})
    assert (off.grpc, flag_of(off, "grpc.enabled")) == ("", ["false"])
    monkeypatch.setattr("horologe_frontend.endpoints.GRPC_PACKAGES", ("grpc", "no_such_package.part"))
    assert build_topology(options, tmp_path, {}).grpc == ""


def test_a_port_of_grpc_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match=rf"gRPC: {address} is in use; choose another by --grpc HOST:PORT"):
            build_topology(OPTIONS._replace(models=str(tmp_path), grpc=address), tmp_path, {})


def test_the_folder_of_pipelines_may_be_created_later(tmp_path: Path) -> None:
    topology = build_topology(OPTIONS._replace(models=str(tmp_path)), tmp_path, {})
    assert flag_of(topology, "selector.pipelines") == [str(tmp_path / "pipelines")]


def test_a_state_folder_of_another_system_is_an_error(tmp_path: Path) -> None:
    options = OPTIONS._replace(models=str(tmp_path), sets=(f"selector.state={tmp_path}",))
    build_topology(options, tmp_path, {})
    store = open_sqlite(SelectorSettings(state=str(tmp_path)))
    try:
        with pytest.raises(SettingsError, match=r"state: .*selector.*sqlite is in use .* --set selector.state=FOLDER"):
            build_topology(options, tmp_path, {})
        build_topology(options._replace(sets=(*options.sets, "selector.store=memory")), tmp_path, {})
    finally:
        store.close()
    build_topology(options, tmp_path, {})


def test_grpc_needs_keys_beyond_this_machine(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"grpc.host: 0.0.0.0 is not loopback and no keys are set"):
        build_topology(OPTIONS._replace(models=str(tmp_path), grpc="0.0.0.0:0"), tmp_path, {})


def test_frontends_share_their_ports_and_only_the_first_has_unix_sockets(tmp_path: Path) -> None:
    clients = ("tcp://127.0.0.1:0", f"ipc://{tmp_path}/clients")
    options = OPTIONS._replace(models=str(tmp_path), clients=clients, frontends=2, profiler=True)
    topology = build_topology(options, tmp_path, {})
    children = {child.name: child.arguments for child in topology.children}
    assert list(children)[:4] == ["frontend-0", "frontend-1", "selector", "controller"]
    for number in ("0", "1"):
        assert {f"--set=frontend.name={number}", "--set=frontend.reuse_port=true"} <= set(
            children[f"frontend-{number}"]
        )
    last = [argument for argument in children["frontend-1"] if argument.startswith("--set=frontend.clients=")][-1]
    assert last == f"--set=frontend.clients={topology.clients[0]}"
    (connected,) = [argument for argument in children["profiler"] if argument.startswith("--set=links.connect=")]
    assert [text.rpartition("/")[2] for text in connected.split(",")] == ["frontend-0", "frontend-1", "controller"]


def test_a_worker_gets_the_cores_and_the_gpu_of_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine((tuple((cpu,) for cpu in range(8)),), (Gpu(0),))
    monkeypatch.setattr("horologe_cli.local.topology.read_machine", lambda gpus: machine)
    topology = build_topology(OPTIONS._replace(models=str(tmp_path)), tmp_path, {})
    (worker,) = [child for child in topology.children if child.name == "worker-0"]
    assert worker.cpus == tuple(range(8))
    settings = {"exec_cpus=7,6,5,4,3,2", "device=cuda:0", "hardware=cuda"}
    assert {f"--set=worker.{text}" for text in settings} <= set(worker.arguments)
    assert topology.hardware == "cuda"
