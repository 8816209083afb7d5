"""Keys of the SDK in the frontend: scopes and rates of their entries, and the audit log."""

from __future__ import annotations

from typing import Any

from fakes.key_entries import keys_of
from frontend.frontend_builders import CONTROLLER, NOW, SELECTOR, a_frontend, send_predict
from harness.builders import a_predict, a_spec, sent
from horologe_common.applications import Application
from horologe_common.clock import s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Activity,
    Admit,
    Answer,
    Applications,
    Declare,
    Feedback,
    ModelInfo,
    Models,
    ModelState,
    Observation,
    Query,
    Tune,
    Tuning,
    Watch,
)
from horologe_frontend.core.access import EVERYTHING, KeyEntry
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.management import ManagementCall

ANN, BOB, CAROL, UNLISTED, OPEN = "user/01:ann", "user/02:bob", "client/03:carol", "client/04:dave", "client/05"
ENTRIES = {"ann": KeyEntry(infer=("sum",)), "bob": KeyEntry(infer=("*",), rate=1.0), "carol": EVERYTHING}


def frontend_with_keys() -> tuple[Frontend, list[ManagementCall]]:
    frontend = a_frontend()
    audit: list[ManagementCall] = []
    frontend.access.replace_keys(ENTRIES)
    frontend.set_audit(audit.append)
    return frontend, audit


def outcome(frontend: Frontend, client: str, message: Any, kind: type[Any]) -> tuple[Status, str] | None:
    """Return the status and the reason of the reply, or None if there is none yet."""
    frontend.handle(NOW, client, message, ())
    replies = sent(frontend, kind, client)
    return (Status(replies[0].status), replies[0].reason) if replies else None


def test_a_key_permits_what_its_entry_says() -> None:
    frontend, _ = frontend_with_keys()
    for number, (client, model) in enumerate(((ANN, "sum"), (CAROL, "sum"), (OPEN, "sum")), 1):
        send_predict(frontend, a_predict(number, model), client=client)
        assert len(sent(frontend, Query, SELECTOR)) == 1
    for client, model in ((ANN, "other"), (UNLISTED, "sum")):
        send_predict(frontend, a_predict(9, model), client=client)
        (answer,) = sent(frontend, Answer, client)
        assert answer.status == Status.FORBIDDEN
        assert not sent(frontend, Query)
    assert "the key 'dave' has no entry in http.keys_file" in answer.reason
    assert outcome(frontend, ANN, Watch(1, 0), Activity) == (
        Status.FORBIDDEN,
        "the key 'ann' does not permit observe (http.keys_file)",
    )
    assert outcome(frontend, ANN, ModelInfo(1), Models)[0] == Status.FORBIDDEN  # type: ignore[index]
    assert outcome(frontend, ANN, ModelInfo(1, "sum"), Models)[0] == Status.OK  # type: ignore[index]
    frontend.handle(NOW, ANN, Feedback(3, "digits", (Observation((1.0,)), Observation((2.0,)))), ())
    (acknowledged,) = sent(frontend, Acknowledged, ANN)
    assert acknowledged.statuses == (Status.FORBIDDEN,) * 2
    frontend.check()


def test_a_rate_counts_for_all_doors_together() -> None:
    frontend, _ = frontend_with_keys()
    frontend.access.replace_keys(ENTRIES | {"bob": KeyEntry(keys_of("bob")["bob"].hashes, ("*",), rate=1.0)})
    send_predict(frontend, a_predict(1), s(1), BOB)
    assert sent(frontend, Query)
    send_predict(frontend, a_predict(2), s(1), BOB)
    (answer,) = sent(frontend, Answer, BOB)
    assert (answer.status, answer.retry_after_ns) == (Status.REFUSED, s(1))
    frontend.access.authenticate(b"Bearer bob").take(s(2))
    send_predict(frontend, a_predict(3), s(2), BOB)
    assert sent(frontend, Answer, BOB)[0].status == Status.REFUSED


def test_management_calls_of_the_sdk_are_audited_at_their_end() -> None:
    frontend, audit = frontend_with_keys()
    frontend.handle(NOW, CAROL, Admit(1, "sum", "", True), ())
    assert not audit
    (admit,) = sent(frontend, Admit, CONTROLLER)
    frontend.handle(NOW, CONTROLLER, Models(admit.id, (), int(Status.UNKNOWN_MODEL), "none"), ())
    frontend.handle(NOW, ANN, Admit(2, "sum", "", False), ())
    frontend.handle(NOW, CAROL, Declare(3, Application("", ())), ())
    frontend.handle(NOW, CAROL, Declare(4, Application("mine", ("sum",))), ())
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    frontend.handle(NOW, CAROL, Tune(5, "apply"), ())
    frontend.handle(NOW, CAROL, Tune(6, "status"), ())
    frontend.handle(NOW, CAROL, Admit(7, "sum", "", True), ())
    frontend.handle(NOW, CAROL, PeerDisconnected(CAROL), ())
    frontend.handle(NOW, "http/0#1", Admit(8, "sum", "", True), ())
    assert [(call.client, call.call, call.target, call.outcome) for call in audit] == [
        ("carol", "load", "sum", "UNKNOWN_MODEL"),
        ("ann", "unload", "sum", "FORBIDDEN"),
        ("carol", "application_declare", "", "INVALID_INPUT"),
        ("carol", "application_declare", "mine", "LOST"),
        ("carol", "plan_apply", "", "LOST"),
        ("carol", "load", "sum", "CANCELLED"),
    ]
    assert not sent(frontend, Tuning, ANN)
    assert not sent(frontend, Applications, ANN)


def test_the_audit_log_names_versions() -> None:
    frontend, audit = frontend_with_keys()
    frontend.handle(NOW, CAROL, Admit(1, "sum", "3", True, "canary", 0.1), ())
    frontend.handle(NOW, CAROL, Admit(2, "sum", "", True, "rollback"), ())
    canary, rollback = sent(frontend, Admit, CONTROLLER)
    states = (ModelState(a_spec("sum", version="2"), traffic=1.0), ModelState(a_spec("sum", version="3")))
    frontend.handle(NOW, CONTROLLER, Models(canary.id, (), int(Status.FAILED), "no room"), ())
    frontend.handle(NOW, CONTROLLER, Models(rollback.id, states), ())
    frontend.handle(NOW, ANN, Admit(3, "sum", "2", True, "promote"), ())
    frontend.handle(NOW, ANN, Admit(4, "sum", "2", True, "no\nrollout", float("nan")), ())
    assert [(call.call, call.version, call.weight, call.outcome) for call in audit] == [
        ("canary", "3", 0.1, "FAILED"),
        ("rollback", "2", 0.0, "OK"),
        ("promote", "2", 0.0, "FORBIDDEN"),
        ("load", "2", 0.0, "FORBIDDEN"),
    ]
