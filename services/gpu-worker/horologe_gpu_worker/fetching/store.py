"""Stores that fsspec reads: lists of files with checksums, and their bytes."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.status import ModelFailed, describe_exception
from horologe_gpu_worker.fetching.source import EXTRAS, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_S, READ_S = 30, 60
IDENTITY = {"Accept-Encoding": "identity"}
FILES_MAX, DEPTH_MAX = 100_000, 16
IDENTITIES = ("ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "last_modified", "updated")
"""Fields of a file's description that change with its content. The first that is present counts."""
MD5 = re.compile(r'"?([0-9a-f]{32})"?')


class RemoteFile(msgspec.Struct, frozen=True):
    """A file in a store."""

    name: str
    """Path in the folder of the model: `1/model.onnx`."""
    url: str
    size: int = -1
    """Bytes; -1: the store does not say."""
    identity: str = ""
    """Changes with the content. Empty: the store does not say whether the file has changed."""
    digest: str = ""
    """Algorithm and hexadecimal digest: `md5:...`, `sha256:...` or `git:...`. Empty: the store has none."""


class Store:
    """The store of a URL, with the credentials of the usual environment of its kind.

    Every method raises `ModelFailed` naming the URL.
    """

    def __init__(self, url: str) -> None:
        self._protocol = url.partition("://")[0]
        options: dict[str, Any] = {}
        try:
            import fsspec

            if self._protocol in ("http", "https"):
                import aiohttp

                timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
                options = {"client_kwargs": {"timeout": timeout, "trust_env": True}, "headers": IDENTITY}
            self._files: Any = fsspec.filesystem(self._protocol, skip_instance_cache=True, **options)
        except ImportError as error:
            missing = first_cause(error)
            name = missing.name if isinstance(missing, ImportError) and missing.name else str(missing)
            reason = f"{name} is not installed (the extra `{EXTRAS[self._protocol]}` of the distribution)"
            raise ModelFailed(f"{shown_url(url)}: {reason}") from error
        except Exception as error:  # a library may raise anything for wrong credentials
            raise ModelFailed(f"{shown_url(url)}: {describe_cause(error)}") from error

    def list_files(self, url: str, missing_ok: bool = False) -> list[RemoteFile]:
        """Return the files below a URL, or the file at it. Names are relative to the URL.

        With `missing_ok`, nothing at the URL is no error.
        """
        try:
            self._files.invalidate_cache()
            root = self._files._strip_protocol(url).rstrip("/")
            found = self._find(root)
            files = [self._describe(path, root, info) for path, info in found.items()]
        except Exception as error:
            if missing_ok and is_missing(error):
                return []
            raise ModelFailed(f"{shown_url(url)}: {describe_cause(error)}") from error
        if len(files) > FILES_MAX or not (files or missing_ok):
            raise ModelFailed(f"{shown_url(url)}: got {len(files)} files, wanted 1 to {FILES_MAX}")
        return [file for file in files if _is_safe(file.name)]

    def _find(self, root: str) -> dict[str, dict[str, Any]]:
        if self._protocol in ("http", "https"):  # anything but a page of links is a file
            info = self._files.info(root)
            if "html" not in str(info.get("mimetype")):
                return {root: info}
            return dict(self._files.find(f"{root}/", maxdepth=DEPTH_MAX, detail=True))
        return dict(self._files.find(root, detail=True))

    def describe(self, url: str, name: str) -> RemoteFile:
        """Return the file at a URL, as `name`."""
        try:
            path = self._files._strip_protocol(url)
            return msgspec.structs.replace(self._describe(path, path, self._files.info(path)), name=name)
        except Exception as error:
            raise ModelFailed(f"{shown_url(url)}: {describe_cause(error)}") from error

    def _describe(self, path: str, root: str, info: dict[str, Any]) -> RemoteFile:
        if self._protocol in ("http", "https") and info.get("size") is None:  # a page of links has only names
            info = self._files.info(path)
        name = path.removeprefix(root).strip("/") or path.rstrip("/").rpartition("/")[2]
        identity = next((str(info[key]) for key in IDENTITIES if info.get(key)), "")
        url = path if "://" in path else f"{self._protocol}://{path}"
        size = info.get("size")
        return RemoteFile(name, url, -1 if size is None else int(size), identity, _digest(info))

    def digest(self, file: RemoteFile) -> str:
        """Return the digest of a file, for which S3 must be asked; empty if the store has none."""
        if self._protocol != "s3":
            return file.digest
        bucket, _, key = file.url.removeprefix("s3://").partition("/")
        try:
            head = self._files.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except Exception as error:
            raise ModelFailed(f"{shown_url(file.url)}: {describe_cause(error)}") from error
        if head.get("ChecksumSHA256") and head.get("ChecksumType") == "FULL_OBJECT":
            return f"sha256:{_hex(head['ChecksumSHA256'])}"
        etag = MD5.fullmatch(head.get("ETag", ""))  # of several parts: not a digest of the file
        return f"md5:{etag[1]}" if etag and head.get("ServerSideEncryption", "AES256") == "AES256" else ""

    def sends_parts(self, file: RemoteFile) -> bool:
        """Return whether a fetch can be resumed. Raises any error of the store."""
        if self._protocol not in ("http", "https"):
            return True
        from fsspec.asyn import sync

        return bool(sync(self._files.loop, self._sends_first_byte, file.url))

    async def _sends_first_byte(self, url: str) -> bool:
        session = await self._files.set_session()
        async with session.get(self._files.encode_url(url), headers=IDENTITY | {"Range": "bytes=0-0"}) as response:
            return bool(response.status == 206)

    def read(self, file: RemoteFile, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to before `end`. Raises any error of the store."""
        content: bytes
        if self._protocol in ("http", "https"):
            from fsspec.asyn import sync

            content = sync(self._files.loop, self._read_part, file.url, begin, end)
        else:
            content = self._files.cat_file(self._files._strip_protocol(file.url), start=begin, end=end)
        if len(content) != end - begin:
            raise OSError(f"got {len(content)} bytes, wanted {end - begin} from {begin}")
        return content

    async def _read_part(self, url: str, begin: int, end: int) -> bytes:
        """Return the answer to a request for a part. A server may send more: stop after a few bytes of that."""
        session, content = await self._files.set_session(), bytearray()
        headers = IDENTITY | {"Range": f"bytes={begin}-{end - 1}"}
        async with session.get(self._files.encode_url(url), headers=headers) as response:
            response.raise_for_status()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > end - begin:
                    break
        return bytes(content)

    def stream(self, file: RemoteFile, chunk_bytes: int) -> Iterator[bytes]:
        """Iterate over the whole file. Raises any error of the store."""
        with self._files.open(self._files._strip_protocol(file.url), "rb", block_size=0) as opened:
            while chunk := opened.read(chunk_bytes):
                yield chunk


def describe_cause(error: BaseException) -> str:
    """Return the first cause of an error: fsspec replaces some by a FileNotFoundError."""
    return describe_exception(first_cause(error))


def is_missing(error: BaseException) -> bool:
    """Return whether an error says that there is nothing at a URL."""
    cause = first_cause(error)
    return isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) == 404


def is_refused(error: BaseException) -> bool:
    """Return whether an error says that the store does not permit the call."""
    cause = first_cause(error)
    return isinstance(cause, PermissionError) or getattr(cause, "status", 0) in (401, 403)


def first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _digest(info: dict[str, Any]) -> str:
    """Return the digest in a description by any of the stores."""
    lfs, settings = info.get("lfs"), info.get("content_settings")
    if lfs:  # Hugging Face: a large file, else the hash of Git
        return f"sha256:{lfs['sha256']}"
    if info.get("blob_id"):
        return f"git:{info['blob_id']}"
    if isinstance(repeated := info.get("Digest"), str) and repeated.lower().startswith("sha-256="):
        return f"sha256:{_hex(repeated.partition('=')[2])}"
    md5 = info.get("md5Hash") or info.get("Content-MD5") or (settings and settings.get("content_md5"))
    if isinstance(md5, bytes | bytearray):
        return f"md5:{md5.hex()}"
    return f"md5:{_hex(md5)}" if md5 else ""


def _hex(text: str) -> str:
    """Return a base64 digest as hexadecimal; empty if it is none."""
    try:
        return base64.b64decode(text).hex()
    except (binascii.Error, ValueError):
        return ""


def _is_safe(name: str) -> bool:
    """Return whether a name stays in the folder that it is written to."""
    parts = name.split("/")
    return all(part not in ("", ".", "..") and "\0" not in part and "?" not in part for part in parts)
