"""Commands do not wait for a server where nothing listens."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from horologe_cli.refused_endpoints import is_refused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_port_at_which_nothing_listens_refuses_and_others_do_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        open_, closed = (f"tcp://127.0.0.1:{sock.getsockname()[1]}" for sock in (listener, bound))
        assert is_refused(closed)
        assert is_refused(f"{closed}, {closed}")
        assert not is_refused(open_)
        assert not is_refused(f"{closed},{open_}"), "the client tries each"


def test_a_unix_socket_that_is_missing_refuses(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    assert is_refused(f"ipc://{path}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        assert not is_refused(f"ipc://{path}")
    assert is_refused(f"ipc://{path}"), "its process has ended"


def test_what_cannot_be_connected_is_left_to_the_client() -> None:
    assert not is_refused("tcp://127.0.0.1:port")
