"""TLS of HTTP and gRPC with real clients: authorities, certificates of clients, and files that change."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc import aio

from fakes.authority import Authority, Pair
from frontend.grpc_calls import infer_request, open_door
from harness.event_loop import in_loop
from horologe_common.service.settings import SettingsError
from horologe_frontend.changed_files import ChangedFiles
from horologe_frontend.grpc.settings import GrpcSettings
from horologe_frontend.tls import Certificates, TlsSettings
from system.http_server_thread import GOOD, HttpServerThread, is_closed, read_response, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Files(NamedTuple):
    """Authorities and certificates of a test."""

    authority: Authority
    server: Pair
    second: Pair
    client: Pair
    stranger: Pair
    """A certificate of another authority."""

    def load(self, mutual: bool = False, server: Pair | None = None) -> Certificates:
        certificate, key = map(str, server or self.server)
        authority = str(self.authority.pair.certificate) if mutual else ""
        certificates = Certificates(TlsSettings(certificate, key, authority))
        certificates.load()
        return certificates

    def context(self, client: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.pair.certificate))
        if client is not None:
            context.load_cert_chain(*client)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = Authority(folder, "ours"), Authority(folder, "theirs")
    return Files(ours, ours.sign("first"), ours.sign("second"), ours.sign("client"), theirs.sign("stranger"))


def common_name(address: str, context: ssl.SSLContext) -> str:
    """Return the common name in the certificate of a server."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as sock, context.wrap_socket(sock, server_hostname=host) as tls:
        certificate: Any = tls.getpeercert()
    return str(certificate["subject"][0][0][1])


def test_clients_of_triton_over_https(files: Files) -> None:
    with HttpServerThread(certificates=files.load()) as http:
        assert http.server.url.startswith("https://")
        authority = str(files.authority.pair.certificate)
        options: dict[str, Any] = {"ssl_context_factory": lambda: ssl.create_default_context(cafile=authority)}
        with triton_http.InferenceServerClient(http.address, ssl=True, **options) as client:
            tensor = triton_http.InferInput("in", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
            assert client.infer("echo", [tensor]).as_numpy("out").tolist() == [[1, 1, 1, 1]]
        with httpx.Client(verify=files.context()) as client:
            size = 3_000_000
            long = {"name": "in", "shape": [size], "datatype": "UINT8", "data": [7] * size}
            answer = client.post(f"{http.server.url}/v2/models/huge/infer", json={"inputs": [long]}).json()
            assert answer["outputs"][0]["data"] == long["data"]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{http.server.url}/v2")  # an authority that the client does not know
        with http.connect() as plain:
            plain.sendall(request())
            assert is_closed(plain)
        http.wait(lambda: http.server.clients.total.connections == 0)


def test_a_client_that_closes_its_side_over_tls_ends_its_request(files: Files) -> None:
    with HttpServerThread(certificates=files.load()) as http:
        with files.context().wrap_socket(http.connect(), server_hostname="127.0.0.1") as tls:
            tls.sendall(request("slow"))
            http.wait(lambda: len(http.gateway.predicts) == 1)
        http.wait(lambda: http.gateway.cancelled == 1)


def test_a_handshake_that_does_not_end_counts_for_its_client(files: Files) -> None:
    with HttpServerThread(certificates=files.load(), max_connections=4) as http:
        sockets = [http.connect() for _ in range(4)]
        http.wait(lambda: http.server.clients.total.connections == 2)  # half of all, for one client
        assert all(map(is_closed, sockets[2:]))
        for sock in sockets:
            sock.close()
        http.wait(lambda: http.server.clients.total.connections == 0)


def test_http_clients_need_a_certificate_of_our_authority(files: Files) -> None:
    with HttpServerThread(certificates=files.load(mutual=True)) as http:
        for client in (None, files.stranger):
            with pytest.raises(httpx.TransportError), httpx.Client(verify=files.context(client)) as https:
                https.get(f"{http.server.url}/v2/health/live")
        with httpx.Client(verify=files.context(files.client)) as https:
            assert https.post(f"{http.server.url}/v2/models/echo/infer", content=GOOD).status_code == 200
        http.wait(lambda: http.server.clients.total.connections == 0)


def test_a_certificate_is_replaced_while_connections_live(files: Files, tmp_path: Path) -> None:
    server = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    server.replace_by(files.server)
    certificates = files.load(server=server)
    with HttpServerThread(certificates=certificates) as http:
        changes = ChangedFiles(certificates.files)
        watch = asyncio.run_coroutine_threadsafe(changes.run(certificates.load, 0.01), http.loop)
        with files.context().wrap_socket(http.connect(), server_hostname="127.0.0.1") as tls:
            assert common_name(http.address, files.context()) == "first"
            server.certificate.write_bytes(files.second.certificate.read_bytes())
            threading.Event().wait(0.1)
            assert common_name(http.address, files.context()) == "first"  # the key does not belong to it yet
            server.replace_by(files.second)
            http.wait(lambda: certificates.version == 2)
            assert common_name(http.address, files.context()) == "second"
            tls.sendall(request())
            assert read_response(tls)[0] == 200
        watch.cancel()


@asynccontextmanager
async def grpc_door(certificates: Certificates, files: Files, client: Pair | None = None) -> AsyncIterator[Any]:
    pair = () if client is None else (client.key.read_bytes(), client.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(files.authority.pair.certificate.read_bytes(), *pair)
    async with open_door(
        GrpcSettings(port=0),
        channel=lambda address: aio.secure_channel(address, credentials),
        certificates=certificates,
    ) as door:
        yield door


@in_loop
async def test_grpc_over_tls(files: Files) -> None:
    async with grpc_door(files.load(), files) as door:
        assert (await door.call("ModelInfer", infer_request())).model_name == "echo"
        other = grpc.ssl_channel_credentials(files.stranger.certificate.read_bytes())
        for channel in (aio.insecure_channel(door.server.address), aio.secure_channel(door.server.address, other)):
            async with channel:
                assert (
                    await door._replace(channel=channel).failure("ServerLive")
                ).code() is grpc.StatusCode.UNAVAILABLE


@in_loop
async def test_grpc_clients_need_a_certificate_of_our_authority(files: Files) -> None:
    for client in (None, files.stranger):
        async with grpc_door(files.load(mutual=True), files, client) as door:
            assert (await door.failure("ServerLive")).code() is grpc.StatusCode.UNAVAILABLE
    async with grpc_door(files.load(mutual=True), files, files.client) as door:
        assert await asyncio.to_thread(triton_is_live, door.server.address, files)


def triton_is_live(address: str, files: Files) -> bool:
    authority, certificate, key = map(str, (files.authority.pair.certificate, *files.client))
    options = {"root_certificates": authority, "certificate_chain": certificate, "private_key": key}
    with triton_grpc.InferenceServerClient(address, ssl=True, **options) as client:
        return bool(client.is_server_live())


@in_loop
async def test_grpc_uses_a_replaced_certificate_for_new_connections(files: Files, tmp_path: Path) -> None:
    server = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    server.replace_by(files.server)
    certificates = files.load(server=server)
    async with grpc_door(certificates, files) as door:
        stream = door.stream()
        await stream.write(infer_request())
        await stream.read()
        for name, pair in (("first", files.server), ("second", files.second), ("first", files.server)):
            server.replace_by(pair)
            certificates.load()
            assert await asyncio.to_thread(common_name, door.server.address, grpc_context(files)) == name
        await stream.write(infer_request())
        assert (await stream.read()).infer_response.model_name == "echo"


def grpc_context(files: Files) -> ssl.SSLContext:
    context = files.context()
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"certificate_file": "first.pem"}, "setting tls.private_key_file: got none"),
        ({"client_ca_file": "ours.pem"}, "setting tls.certificate_file: got none"),
        ({"certificate_file": "nope", "private_key_file": "first.key"}, "tls.certificate_file: .*nope: No such file"),
        ({"certificate_file": "first.pem", "private_key_file": "second.key"}, "KEY_VALUES_MISMATCH"),
        ({"certificate_file": "first.key", "private_key_file": "first.key"}, "got no certificate with its key"),
        (
            {"certificate_file": "first.pem", "private_key_file": "first.key", "client_ca_file": "first.key"},
            "setting tls.client_ca_file: .*got no certificate",
        ),
    ],
)
def test_files_that_cannot_be_used(files: Files, settings: dict[str, str], words: str) -> None:
    folder = files.server.certificate.parent
    with pytest.raises(SettingsError, match=words):
        Certificates(TlsSettings(**{name: str(folder / file) for name, file in settings.items()})).load()


def test_a_key_with_a_passphrase_is_refused(files: Files, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", str(files.server.key), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SettingsError, match="with a passphrase"):
        Certificates(TlsSettings(str(files.server.certificate), str(locked))).load()
