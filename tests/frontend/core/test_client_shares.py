"""What one client gets of the frontend: a share of the open requests and of the staging memory."""

from __future__ import annotations

from typing import Any

from frontend.frontend_builders import CLIENT, CONTROLLER, SELECTOR, a_frontend, send_predict
from harness.builders import a_predict, a_spec, a_state, a_tensor, sent
from horologe_common.core.protocol import PeerConnected
from horologe_common.core.staging import OWNED_FROM, StagedInputs
from horologe_common.status import Status
from horologe_common.wire import Answer, Models, Query
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.settings import FrontendSettings

OTHER = "client/bb"


def statuses(frontend: Any, client: str) -> list[int]:
    return [answer.status for answer in sent(frontend, Answer, client)]


def test_one_client_leaves_room_for_open_requests_of_others() -> None:
    frontend = a_frontend(max_pending=8)
    for number in range(20):
        send_predict(frontend, a_predict(number))
    assert len(sent(frontend, Query)) == 4
    assert set(statuses(frontend, CLIENT)) == {Status.REFUSED}
    send_predict(frontend, a_predict(1), client=OTHER)
    assert len(sent(frontend, Query)) == 1
    assert not statuses(frontend, OTHER)
    frontend.check()


def test_one_client_leaves_room_for_the_inputs_of_others() -> None:
    size = 4 * OWNED_FROM
    staging, header = StagedInputs("frontend/0#1", 10 * size), (a_tensor(),)
    held = [staging.hold(number, header, [bytes(size)], CLIENT) for number in range(1, 9)]
    assert sum(held) == 5
    assert staging.hold(9, header, [bytes(size)], OTHER)
    staging.check()
    for number in range(1, 6):
        staging.release(number)
    staging.check()
    assert staging.hold(10, header, [bytes(size)], CLIENT)
    staging.check()


def clients_of_queries(frontend: Frontend) -> list[str]:
    return [query.client for query in sent(frontend, Query)]


def test_a_request_carries_the_name_of_its_client() -> None:
    """The name of its key; without keys its HTTP address, else its connection to this frontend."""
    frontend = a_frontend()
    for number, address in enumerate(("client/aa:ann", "client/bb:ann", "user/cc:bob", "client/dd", "http/0#1")):
        send_predict(frontend, a_predict(number, client="10.0.0.7"), client=address)
    assert clients_of_queries(frontend) == ["ann", "ann", "bob", "client/dd of frontend/0#1", "10.0.0.7"]


def test_connections_to_two_frontends_are_two_clients() -> None:
    """Frontends number their connections alike."""
    names = []
    for address in ("frontend/0#1", "frontend/1#2"):
        frontend = Frontend(address, FrontendSettings(), lambda header, buffers: b"")
        for peer in (SELECTOR, CONTROLLER):
            frontend.handle(0, peer, PeerConnected(peer), ())
        frontend.handle(0, CONTROLLER, Models(0, (a_state(a_spec(cache=True)),)), ())
        send_predict(frontend, a_predict(1), client="client/0000000001")
        names += clients_of_queries(frontend)
    assert len(set(names)) == 2


def test_a_client_cannot_take_another_name() -> None:
    frontend = a_frontend()
    send_predict(frontend, a_predict(1, client="somebody"))
    assert clients_of_queries(frontend) == [f"{CLIENT} of frontend/0#1"]


def test_http_clients_leave_room_for_one_another() -> None:
    frontend = a_frontend(max_pending=8)
    for number in range(20):
        send_predict(frontend, a_predict(number, client="10.0.0.1"), client="http/0#1")
    assert len(sent(frontend, Query)) == 4
    send_predict(frontend, a_predict(99, client="10.0.0.2"), client="http/0#1")
    assert clients_of_queries(frontend) == ["10.0.0.2"]
    frontend.check()
