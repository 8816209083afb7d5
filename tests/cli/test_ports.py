"""Ports for those who listen later: nobody else gets them."""

from __future__ import annotations

import socket

import pytest

from horologe_cli.local.ports import HELD_PORTS, free_port


def test_a_port_is_kept_from_others_and_free_for_a_listener() -> None:
    port = free_port("127.0.0.1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # a service that is restarted listens again
        listener = socket.create_server(("127.0.0.1", port))
        with listener, socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            pass


def test_ports_differ_and_a_bounded_number_is_held() -> None:
    ports = [free_port("127.0.0.1") for _ in range(HELD_PORTS + 1)]
    assert len(set(ports[1:])) == HELD_PORTS
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports[0]))
