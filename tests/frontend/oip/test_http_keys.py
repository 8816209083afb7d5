"""Keys over HTTP: the scope of every route, the key file, names of clients, rates, and the audit log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from fakes.gateway import FakeGateway, respond
from fakes.key_entries import entry, hash_of, keys_of
from horologe_common.service.settings import SettingsError
from horologe_frontend.auth import check_open, load_keys, read_keys
from horologe_frontend.core.access import Access, KeyEntry, Scope
from horologe_frontend.http.client_accounts import ClientAccount
from horologe_frontend.http.http_messages import HttpRequest, HttpResponse
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler
from horologe_frontend.oip.operations import OPERATIONS, Operation
from horologe_frontend.oip.routes import parse_route
from horologe_frontend.tls import NO_TLS, TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

GOOD = b'{"inputs":[{"name":"in","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
ENTRIES = {
    "user": entry("user", infer=("ech?", "dig*")),
    "viewer": entry("viewer", observe=True),
    "manager": entry("manager", manage=True),
    "none": entry("none"),
}
EVERYONE = set(ENTRIES)


class Door:
    """A handler whose gateway has these keys."""

    def __init__(self, entries: dict[str, KeyEntry] | None = None) -> None:
        self.gateway = FakeGateway()
        if entries is not None:
            self.gateway.core.access.replace_keys(entries)
        self.oip = OipHandler(self.gateway, HttpSettings())

    def send(self, method: str, path: str, key: str = "", body: bytes = b"", **headers: str) -> HttpResponse:
        encoded = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        if key:
            encoded[b"authorization"] = b"Bearer " + key.encode()
        path, _, query = path.partition("?")
        account = ClientAccount(name="10.0.0.7")
        return asyncio.run(respond(self.oip, HttpRequest(method, path, query, encoded, body, account)))

    def permitted(self, method: str, path: str) -> set[str]:
        """Return the names of the keys that the request is not forbidden for."""
        statuses = {name: self.send(method, path, name, GOOD).status for name in ENTRIES}
        assert 401 not in statuses.values()
        return {name for name, status in statuses.items() if status != 403}


ROUTES: list[tuple[str, str, set[str]]] = [
    ("GET", "/v2", EVERYONE),
    ("GET", "/v2/openapi.json", EVERYONE),
    ("POST", "/v2/systemsharedmemory/region/echo/register", EVERYONE),
    ("GET", "/v2/trace/setting", EVERYONE),
    ("GET", "/v2/models/echo/trace/setting", EVERYONE),
    ("GET", "/v2/models", {"viewer"}),
    ("GET", "/v2/models/stats", {"viewer"}),
    ("POST", "/v2/repository/index", {"viewer"}),
    ("POST", "/v2/repository/echo/index", {"viewer"}),
    ("GET", "/v1/applications", {"viewer"}),
    ("GET", "/console/events", {"viewer"}),
    ("GET", "/v2/nope", EVERYONE),
    ("POST", "/v2/models/echo/infer", {"user"}),
    ("POST", "/v2/models/slow/infer", set()),
    ("POST", "/v2/models/echo/versions/9/infer", {"user"}),
    ("POST", "/v2/models/late/versions/1/infer", set()),
    ("POST", "/v2/models/echo/generate", {"user"}),
    ("POST", "/v2/models/slow/generate", set()),
    ("POST", "/v2/models/echo/versions/9/generate_stream", {"user"}),
    ("POST", "/v2/models/slow/generate_stream", set()),
    ("POST", "/v2/models/unknown/infer", set()),  # as for a model that exists
    ("POST", "/v2/models/%65cho/infer", {"user"}),
    ("POST", "/v2/models/%73low/infer", set()),
    ("POST", "/v2/models/echo%2f..%2fslow/infer", set()),
    ("POST", "/v2/models/echo/../slow/infer", EVERYONE),  # no such path
    ("POST", "/v2/models/slow%2fversions%2f1/infer", set()),
    ("POST", "/v2/models/odd%2Fn%C3%A4me/infer", set()),
    ("POST", "/v2/models/texts/infer", set()),  # an application
    ("GET", "/v2/models/echo", {"user", "viewer"}),
    ("GET", "/v2/models/echo/versions/9/config", {"user", "viewer"}),
    ("GET", "/v2/models/echo/ready", {"user", "viewer"}),
    ("GET", "/v2/models/slow", {"viewer"}),
    ("GET", "/v2/models/slow/config", {"viewer"}),
    ("GET", "/v2/models/slow/versions/1/ready", {"viewer"}),
    ("GET", "/v2/models/unknown", {"viewer"}),
    ("GET", "/v2/models/echo/stats", {"viewer"}),
    ("HEAD", "/v2/models/echo/versions/9/stats", {"viewer"}),
    ("GET", "/v1/applications/digits", {"viewer"}),
    ("HEAD", "/v1/applications/digits", {"viewer"}),
    ("POST", "/v1/applications/digits/predict", {"user"}),
    ("POST", "/v1/applications/texts/predict", set()),
    ("POST", "/v1/applications/digits/feedback", {"user"}),
    ("POST", "/v1/applications/texts/feedback", set()),
    ("POST", "/v1/applications/digits/rollback", {"manager"}),
    ("PUT", "/v1/applications/digits", {"manager"}),
    ("DELETE", "/v1/applications/digits", {"manager"}),
    ("POST", "/v2/repository/models/echo/load", {"manager"}),
    ("POST", "/v2/repository/models/echo/unload", {"manager"}),
    ("POST", "/v2/repository/any/models/echo/load", {"manager"}),
]


@pytest.mark.parametrize(("method", "path", "permitted"), ROUTES)
def test_every_route_needs_its_scope(method: str, path: str, permitted: set[str]) -> None:
    door = Door(ENTRIES)
    assert door.permitted(method, path) == permitted
    assert door.send(method, path, body=GOOD).status == 401
    assert door.send(method, path, "wrong", GOOD).status == 401
    assert door.send(method, f"{path}?access_token=user&key=user&api_key=user", body=GOOD).status == 401
    served = {predict.model or predict.application for predict in door.gateway.predicts}
    assert served <= {"echo", "digits"}


def test_every_operation_with_a_scope_is_tested() -> None:
    tested = {
        parse_route(method, path).operation.name
        for method, path, _ in ROUTES
        if ".." not in path and "nope" not in path
    }
    assert tested == {name for name, scope in SCOPES.items() if scope is not None}
    assert Operation("a new one", "GET", "/new", "").scope is Scope.MANAGE


SCOPES = {operation.name: operation.scope for group in OPERATIONS.values() for operation in group}


def test_the_health_and_the_page_of_the_console_need_no_key() -> None:
    door = Door(ENTRIES)
    for path in ("/v2/health/live", "/v2/health/ready", "/console", "/console/console.js"):
        assert door.send("GET", path).status == 200
    for path in ("/v2/health/live/../../models", "/v2/health/live/", "/console/", "//v2/health/live"):
        assert door.send("GET", path).status == 401


def test_responses_without_a_key_are_equal() -> None:
    door = Door(keys_of("k"))
    answers = {
        door.send(method, path)
        for method, path in (
            ("GET", "/v2"),
            ("GET", "/v2/models/echo"),
            ("GET", "/v1/applications"),
            ("POST", "/v2/models/nope/infer"),
            ("GET", "/x"),
        )
    }
    headers = (b"horologe-status", b"UNAUTHENTICATED"), (b"www-authenticate", b"Bearer")
    expected = HttpResponse(401, b'{"error":"unauthenticated","status":"UNAUTHENTICATED"}', headers=headers)
    assert answers == {expected}
    assert door.send("GET", "/v2", "k").status == 200


def test_a_denied_request_names_the_key_and_the_scope() -> None:
    response = Door(ENTRIES).send("POST", "/v2/models/slow/infer", "user", GOOD)
    assert b"the key 'user' does not permit infer on 'slow' (http.keys_file)" in response.body
    assert dict(response.headers)[b"horologe-status"] == b"FORBIDDEN"


def test_a_rate_that_is_exceeded_is_refused_with_the_time_of_the_next_request() -> None:
    door = Door({"slow": entry("slow", infer=("*",), rate=0.01, burst=2), "fast": entry("fast", infer=("*",))})
    statuses = [door.send("POST", "/v2/models/echo/infer", "slow", GOOD).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = door.send("GET", "/v2", "slow")
    assert refused.status == 429
    headers = dict(refused.headers)
    assert headers[b"horologe-status"] == b"REFUSED"
    assert 90 <= int(headers[b"retry-after"]) <= 100
    assert 90_000 < int(headers[b"retry-after-ms"]) <= 100_000
    assert door.send("POST", "/v2/models/echo/infer", "fast", GOOD).status == 200
    assert door.send("GET", "/v2/health/live", "slow").status == 200


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "horologe.audit"]  # type: ignore[attr-defined]


def test_management_calls_are_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    caplog.handler.setLevel(logging.INFO)  # as the log's: the audit log is written at every `log.level`
    door = Door(ENTRIES)
    door.send("POST", "/v2/repository/models/echo/load", "manager")
    door.send("POST", "/v2/repository/models/no%0aline/unload", "manager")
    door.send("POST", "/v2/repository/models/echo/load", "manager", b'{"parameters":{"config":"{}"}}')
    door.send("POST", "/v2/repository/models/echo/load", "user")
    door.send("PUT", "/v1/applications/mine", "manager", b'{"models":["echo"]}')
    door.send("DELETE", "/v1/applications/mine", "viewer")
    door.send("POST", "/v1/applications/digits/rollback", "manager")
    for method, path in (("GET", "/v2/models/echo/stats"), ("POST", "/v2/models/echo/infer")):
        door.send(method, path, "viewer", GOOD)
    door.send("POST", "/v2/repository/models/echo/load", "wrong")  # a key that has no name
    assert [(line["client"], line["call"], line["target"], line["outcome"]) for line in lines(caplog)] == [
        ("manager", "load", "echo", "OK"),
        ("manager", "unload", "no\\nline", "UNKNOWN_MODEL"),
        ("manager", "upload", "echo", "NOT_IMPLEMENTED"),
        ("user", "load", "echo", "FORBIDDEN"),
        ("manager", "application_declare", "mine", "OK"),
        ("viewer", "application_withdraw", "mine", "FORBIDDEN"),
        ("manager", "application_rollback", "digits", "OK"),
    ]
    assert {line["door"] for line in lines(caplog)} == {"http"}
    assert "Bearer" not in caplog.text
    assert hash_of("manager")[7:] not in caplog.text


def test_the_audit_log_names_versions(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(ENTRIES)
    for name, parameters in (
        ("echo", "{}"),
        ("echo", '{"promote":"9"}'),
        ("echo", '{"promote":""}'),
        ("echo", '{"rollback":true}'),
        ("echo", '{"canary":"9","weight":0.1}'),
        ("nope", '{"promote":"7"}'),
        ("echo", '{"canary":"9"}'),
    ):
        body = f'{{"parameters":{parameters}}}'.encode()
        door.send("POST", f"/v2/repository/models/{name}/load", "manager", body)
    door.send("POST", "/v2/repository/models/echo/unload", "manager")
    assert [(line["call"], line["version"], line["weight"], line["outcome"]) for line in lines(caplog)] == [
        ("load", "10", 0.0, "OK"),
        ("promote", "9", 0.0, "OK"),
        ("promote", "10", 0.0, "OK"),
        ("rollback", "10", 0.0, "OK"),
        ("canary", "9", 0.1, "OK"),
        ("promote", "7", 0.0, "UNKNOWN_MODEL"),
        ("load", "", 0.0, "INVALID_INPUT"),
        ("unload", "", 0.0, "OK"),
    ]


def test_without_keys_the_audit_log_has_the_address(caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    assert door.send("POST", "/v2/repository/models/echo/load").status == 200
    assert door.send("POST", "/v2/repository/models/echo/load", origin="https://elsewhere.example").status == 403
    assert [(line["client"], line["outcome"]) for line in lines(caplog)] == [
        ("10.0.0.7", "OK"),
        ("10.0.0.7", "FORBIDDEN"),
    ]


def test_http_clients_are_named_by_their_key_or_else_by_their_address() -> None:
    """A header that nobody checks names no client: each request could carry another one."""
    without, with_keys = Door(), Door(keys_of("a", "b"))
    for door in (without, with_keys):
        for key in ("a", "a", "b"):
            assert door.send("POST", "/v2/models/echo/infer", key, GOOD).status == 200
    assert without.gateway.clients == ["10.0.0.7"] * 3
    assert with_keys.gateway.clients == ["a", "a", "b"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "example.org", "127.0.0.1.example.org"])
def test_an_address_beyond_this_machine_needs_keys(host: str) -> None:
    with pytest.raises(SettingsError, match=r"setting http.host: .* is not loopback and no keys are set"):
        check_open(HttpSettings(host=host), TlsSettings("certificate", "key"))
    check_open(HttpSettings(host=host, allow_open=True), NO_TLS)
    check_open(HttpSettings(host=host, keys_file="keys"), NO_TLS)
    check_open(HttpSettings(host=host), TlsSettings("certificate", "key", "authorities"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_keys(host: str) -> None:
    check_open(HttpSettings(host=host), NO_TLS)


def test_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f"# ours\n[keys.a]\nhashes = ['{hash_of('one')}', '{hash_of('two')}']\ninfer = ['x*']\nrate = 5\n")
    access = Access()
    load_keys(access, str(file))
    assert {access.authenticate(b"Bearer " + key).name for key in (b"one", b"two")} == {"a"}
    assert read_keys(str(file))["a"] == KeyEntry((hash_of("one"), hash_of("two")), ("x*",), rate=5.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got no key, wanted tables"),
        ("[keys]", "got no key, wanted tables"),
        ("keys = 3", "no attribute"),
        ("[keys.a]\n[other]", "got other, wanted tables"),
        ("keys.a = 3", "keys.a: Expected `object`, got `int`"),
        ("one-key-of-version-0.2.0\n", "horologe keys DIR"),
        ("[keys.a]\nhashes = ['sha256:00']", r"keys.a: .*regex.*\.hashes\[0\]"),
        ("[keys.a]\nhash = 'sha256:00'", "unknown field `hash`"),
        ("[keys.a]\nsecret = 'plain'", "unknown field `secret`"),
        ("[keys.a]\nobserve = 1", r"got `int`.*\.observe"),
        ("[keys.a]\nrate = 0", r"keys.a: .*float.*rate"),
        ("[keys.'a b']", "keys.a b: got this name"),
        (f"[keys.a]\nhashes = ['{hash_of('x')}']\n[keys.b]\nhashes = ['{hash_of('x')}']", "got a hash of 'a'"),
    ],
)
def test_a_key_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    access = Access()
    access.replace_keys(keys_of("before"))
    with pytest.raises(SettingsError, match=rf"setting http\.keys_file: .*{words}"):
        load_keys(access, str(file))
    assert access.authenticate(b"Bearer before").name == "before"
    with pytest.raises(SettingsError, match="No such file"):
        load_keys(access, str(tmp_path / "nope"))
