"""Keys of links: who gets in, who may manage, and which endpoints need keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from horologe_cli.local.ports import free_port
from horologe_common.core.protocol import PeerConnected
from horologe_common.service.settings import SettingsError
from horologe_common.status import Status
from horologe_common.transport.keys import copy_worker_keys, is_local, is_private, make_keys
from horologe_common.transport.links import Links
from horologe_common.transport.sockets import LinkSettings
from horologe_common.wire import (
    PROTOCOL,
    Dispatch,
    Envelope,
    Hello,
    Ping,
    Pong,
    Rejected,
    Submit,
    Welcome,
    encode,
)
from system.reactors import packet, reply

if TYPE_CHECKING:
    from pathlib import Path


def test_with_keys_only_their_holders_get_in(start: Any, client: Any, tmp_path: Path) -> None:
    keys, strangers = tmp_path / "keys", tmp_path / "strangers"
    make_keys(keys)
    make_keys(strangers)
    endpoints = {"bind": ("tcp://127.0.0.1:*",), "keys": str(keys)}
    frontend = start("frontend", clients=(f"ipc://{tmp_path}/clients",), **endpoints)
    start("worker", connect=(f"ipc://{tmp_path}/nobody",), keys=str(keys))
    sock = client(f"ipc://{tmp_path}/clients", keys)
    sock.send(packet(Hello(PROTOCOL, ())))
    assert isinstance(reply(sock), Welcome)
    for intruder in (client(f"ipc://{tmp_path}/clients"), client(f"ipc://{tmp_path}/clients", strangers)):
        intruder.setsockopt(zmq.RCVTIMEO, 300)
        intruder.send(packet(Hello(PROTOCOL, ())))
        with pytest.raises(zmq.Again):
            intruder.recv()
    assert frontend.core.heard == []


def test_a_clients_key_does_not_open_the_internal_socket(start: Any, client: Any, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    start("controller", bind=(f"ipc://{tmp_path}/c",), keys=str(tmp_path / "keys"))
    sock = client(f"ipc://{tmp_path}/c", tmp_path / "keys")
    sock.setsockopt(zmq.RCVTIMEO, 300)
    sock.send(packet(Hello(PROTOCOL, ("worker/9#1",))))
    with pytest.raises(zmq.Again):
        sock.recv()


@pytest.mark.parametrize(
    "message",
    [
        Hello(PROTOCOL, ("controller/0#1",)),
        Hello(PROTOCOL, ("worker/0#1", "selector/0#1")),
        Envelope("frontend/0", "controller/0#1", [Dispatch(1, "worker/0#1", (1,))]),
        Envelope("frontend/0", "worker/0#1", [Dispatch(1, "worker/0#1", (1,))]),
        Envelope("frontend/0", "worker/0#1", [Submit(1, "m/1", 1, 1, "worker/0#1", 1)]),
    ],
    ids=["another role", "two roles", "in the name of another", "a message of another role", "a request"],
)
def test_the_key_of_a_worker_permits_only_to_be_a_worker(start: Any, client: Any, tmp_path: Path, message: Any) -> None:
    make_keys(tmp_path / "keys")
    frontend = start("frontend", bind=(f"ipc://{tmp_path}/f",), keys=str(tmp_path / "keys"))
    sock = client(f"ipc://{tmp_path}/f", tmp_path / "keys", "peers/worker")
    sock.send(packet(Hello(PROTOCOL, ("worker/0#1",))))
    assert isinstance(reply(sock), Welcome)
    sock.send(packet(message) if isinstance(message, Hello) else encode([message]))
    while not isinstance(rejection := reply(sock), Rejected):  # a Directory may come first
        pass
    assert rejection == Rejected(int(Status.FORBIDDEN), "the key permits: worker")
    assert frontend.core.wait_for(PeerConnected)
    assert [type(heard) for _, heard in frontend.core.heard] == [PeerConnected]
    assert set(frontend.links.peers.routes) == {"worker/0#1"}


def test_services_with_their_keys_connect(start: Any, tmp_path: Path) -> None:
    make_keys(keys := tmp_path / "keys")
    copy_worker_keys(keys, tmp_path / "copy")
    endpoint = f"tcp://127.0.0.1:{free_port('127.0.0.1')}"
    controller = start("controller", bind=(endpoint,), keys=str(keys))
    worker = start("worker", connect=(endpoint,), keys=str(tmp_path / "copy"), follows=True)
    assert worker.core.wait_for(PeerConnected)
    assert controller.core.wait_for(PeerConnected)
    assert not (tmp_path / "copy/service/service.key_secret").exists()


@pytest.mark.parametrize(("holder", "role"), [("clients/client", "user"), ("management/manager", "client")])
def test_the_key_of_a_client_decides_whether_it_may_manage(
    start: Any, client: Any, tmp_path: Path, holder: str, role: str
) -> None:
    make_keys(tmp_path / "keys")
    frontend = start("frontend", clients=(f"ipc://{tmp_path}/c",), keys=str(tmp_path / "keys"))
    sock = client(f"ipc://{tmp_path}/c", tmp_path / "keys", holder)
    sock.send(packet(Ping(1)))
    assert isinstance(reply(sock), Pong)
    assert frontend.core.heard[0][0].startswith(f"{role}/")


@pytest.mark.parametrize("side", ["bind", "connect"])
@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:1", "tcp://127.0.0.1:1", "ipc://@everyone"])
def test_links_that_others_can_connect_to_need_keys_or_an_explicit_switch(side: str, endpoint: str) -> None:
    with pytest.raises(SettingsError, match="horologe keys"):
        Links("worker/0", "host", msgspec.structs.replace(LinkSettings(), **{side: (endpoint,)})).open([])


def test_clients_beyond_this_machine_need_keys_or_an_explicit_switch() -> None:
    with pytest.raises(SettingsError, match="horologe keys"):
        Links("frontend/0", "host", LinkSettings(), ("tcp://0.0.0.0:1",)).open([])


@pytest.mark.parametrize(
    ("endpoint", "private", "local"),
    [
        ("ipc:///tmp/x", True, True),
        ("unix:///tmp/x", True, True),
        ("ipc://@x", False, False),
        ("tcp://127.0.0.1:5", False, True),
        ("tcp://localhost:5", False, True),
        ("tcp://[::1]:5", False, True),
        ("tcp://0.0.0.0:5", False, False),
        ("tcp://*:5", False, False),
        ("tcp://example:5", False, False),
        ("ws://127.0.0.1:5", False, False),
    ],
)
def test_who_can_connect_to_an_endpoint(endpoint: str, private: bool, local: bool) -> None:
    assert (is_private(endpoint), is_local(endpoint)) == (private, local)


def test_keys_that_are_added_or_removed_count_for_new_connections(start: Any, client: Any, tmp_path: Path) -> None:
    make_keys(keys := tmp_path / "keys", ("before",))
    frontend = start("frontend", clients=(f"ipc://{tmp_path}/c",), keys=str(keys))
    make_keys(keys, ("after",))
    (keys / "clients" / "before.key").unlink()
    sock = client(f"ipc://{tmp_path}/c", keys, "clients/after")
    sock.send(packet(Ping(1)))
    assert isinstance(reply(sock), Pong)
    withdrawn = client(f"ipc://{tmp_path}/c", keys, "clients/before")
    withdrawn.setsockopt(zmq.RCVTIMEO, 300)
    withdrawn.send(packet(Ping(1)))
    with pytest.raises(zmq.Again):
        withdrawn.recv()
    assert {sender.partition(":")[2] for sender, _ in frontend.core.heard} == {"after"}
