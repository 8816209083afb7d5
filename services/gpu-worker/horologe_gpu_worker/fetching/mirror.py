"""Local form of a repository whose files are elsewhere: folders of links to fetched files in the worker's cache.

`<cache>/repositories/HASH/` has the fetched files in `.files`, the last list of each model in `.lists`, and the models
as links. A link is replaced only after its file is complete. All workers with this cache share it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_common.applications import NAME_LIMIT
from horologe_common.service.log import logger
from horologe_common.service.user_files import read_file
from horologe_common.status import HorologeError, ModelFailed, describe_exception
from horologe_gpu_worker.fetching.downloads import Downloads, file_sha256
from horologe_gpu_worker.fetching.source import parse_source, shown_url
from horologe_gpu_worker.fetching.store import RemoteFile
from horologe_gpu_worker.repository.content import list_files
from horologe_gpu_worker.repository.manifest import (
    MANIFEST,
    MODEL_FILES,
    TRITON_CONFIG,
    InvalidModel,
    manifest_path,
    read_manifest_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horologe_gpu_worker.repository.manifest_fields import FileEntry

LISTING = "horologe_gpu_worker.fetching.listing_process"
REPOSITORIES, FILES, LISTS, VIEWS = "repositories", ".files", ".lists", ".views"
ONLY_VERSION = "1"
"""Version of a single model without folders of versions."""
MODEL_LEVEL = (MANIFEST, TRITON_CONFIG)
"""Files beside the versions that are fetched with the list, because they say which versions are served."""
REASON_CHARACTERS = 2000
UNUSED_S = 86400
"""Fetched files without a link, and parts of files, are removed after this time: another worker may need them."""
SUFFIXES = {Path(file).suffix for file in MODEL_FILES}

log = logger("mirror")
_decode_files = msgspec.json.Decoder(list[RemoteFile]).decode


class Mirror:
    """The repository that `worker.repository` names. `root` is its folder, as the model store reads it."""

    def __init__(self, text: str, cache: Path, fetch_timeout_ns: int = 0) -> None:
        self._text, self._cache = text, cache
        self._source = parse_source(text)
        self._timeout_ns = fetch_timeout_ns
        self._place = cache.absolute() / REPOSITORIES / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        is_folder = not (self._source.is_remote or self._source.name)
        self.root = Path(self._source.place) if is_folder else self._place
        self.files = self._place / FILES

    def refresh(self, name: str = "") -> None:
        """List the repository, or one model of it, in a process of its own. Does nothing for a folder.

        Blocks up to the timeout of fetches. Raises `ModelFailed`, and `SettingsError` for a setting.
        """
        if self._source.name and not self._source.is_remote:
            self._link_local()
        if not self._source.is_remote:
            return
        command = [sys.executable, "-P", "-m", LISTING, self._text, str(self._cache), name]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self._timeout_ns / 1e9
            )
        except subprocess.TimeoutExpired as error:
            limit = f"{self._timeout_ns / 1e9:g} s (worker.fetch_timeout_ns)"
            raise ModelFailed(f"{shown_url(self._source.place)}: was not listed within {limit}") from error
        if done.returncode:
            raise ModelFailed(done.stderr.strip()[-REASON_CHARACTERS:] or f"listing: exit code {done.returncode}")
        if done.stdout:
            log.warning("models not listed", reason=done.stdout.strip()[-REASON_CHARACTERS:])

    def refresh_at_start(self) -> None:
        """List the repository. If that fails, use the last list. Raises `HorologeError` if there is none."""
        try:
            self.refresh()
        except ModelFailed as error:
            if not (self._place / LISTS).is_dir():
                raise
            log.warning("repository not listed: using the last list", reason=error.reason)

    def write_lists(self, downloads: Downloads, only: str = "") -> list[str]:
        """List the store and write the lists of its models, or of the model `only`. Runs in the listing process.

        Return why models could not be written, whose names the file system does not accept.
        """
        lists, faults = self._list_models(downloads, only), list[str]()
        for folder in (FILES, LISTS):
            (self._place / folder).mkdir(parents=True, exist_ok=True)
        for name, files in lists.items():
            try:
                self._write_list(name, files, downloads)
            except (OSError, ValueError) as error:
                faults.append(f"{name[:NAME_LIMIT]}: {describe_exception(error)}")
                if only or self._source.name:
                    raise ModelFailed(faults[0]) from error
        known = [only] if only else [path.stem for path in (self._place / LISTS).glob("*.json")]
        for name in known:
            if name not in lists:
                (self._place / LISTS / f"{name}.json").unlink(missing_ok=True)
                shutil.rmtree(self._place / name, ignore_errors=True)
        self._remove_unused_files()
        return faults

    def _write_list(self, name: str, files: list[RemoteFile], downloads: Downloads) -> None:
        """Write the list of a model. Make the folders of its versions, and the files that say which are served."""
        model = self._place / name
        links = {file.name: downloads.fetch(file) for file in files if file.name in MODEL_LEVEL}
        versions = {file.name.partition("/")[0] for file in files if "/" in file.name}
        for version in versions:
            (model / version).mkdir(parents=True, exist_ok=True)
        made = self._place / LISTS / f".{name}.{os.getpid()}"
        made.write_bytes(msgspec.json.encode(files))
        os.replace(made, self._place / LISTS / f"{name}.json")
        _link(model, links)
        for path in model.iterdir():
            if path.name in MODEL_LEVEL and path.name not in links:
                path.unlink(missing_ok=True)
            elif path.is_dir() and path.name not in versions:
                shutil.rmtree(path, ignore_errors=True)

    def _list_models(self, downloads: Downloads, only: str) -> dict[str, list[RemoteFile]]:
        """Return the files of each model. Names are relative to the model's folder."""
        store, place = downloads.store(self._source.place), self._source.place.rstrip("/")
        if self._source.name:
            files = store.list_files(place)
            if is_single_version([file.name for file in files]):
                files = [msgspec.structs.replace(file, name=f"{ONLY_VERSION}/{file.name}") for file in files]
            return {self._source.name: files} if only in ("", self._source.name) else {}
        if only:
            files = store.list_files(f"{place}/{only}", missing_ok=True)
            return {only: files} if any("/" in file.name for file in files) else {}
        lists: dict[str, list[RemoteFile]] = {}
        for file in store.list_files(place):
            name, _, rest = file.name.partition("/")
            if rest and not name.startswith((".", "__")):
                lists.setdefault(name, []).append(msgspec.structs.replace(file, name=rest))
        return lists

    def located(self, folder: Path) -> Path:
        """Return where the files of a version are: its folder, or one in the cache if some of them are fetched."""
        if self._source.is_remote or not any(file.url for file in _files_of(folder).values()):
            return folder
        return self._place / VIEWS / folder.parent.name / folder.name

    def fetch(self, folder: Path, report: Callable[[str], None]) -> bool:
        """Make the files of a version complete. Files whose content is there are not fetched.

        Blocks. Returns False if all files are those of a folder on disk. Raises `InvalidModel` for a wrong hash, and
        `ModelFailed`.
        """
        version, original = folder.name, self.root / folder.parent.name / folder.name
        if not self._source.is_remote:
            _check_hashes(original)
            if folder == original:
                return False
        report(f"fetching {folder.parent.name}/{version}")
        self.files.mkdir(parents=True, exist_ok=True)
        downloads = Downloads(self.files, report)
        links = self._fetch_listed(folder, downloads) if self._source.is_remote else _local_links(original)
        for name, entry in _files_of(folder if self._source.is_remote else original).items():
            if entry.url:
                links[f"{version}/{name}"] = _fetch_entry(name, entry, downloads)
        _link(folder.parent, links, version)
        return True

    def _fetch_listed(self, folder: Path, downloads: Downloads) -> dict[str, Path]:
        """Fetch the listed files of a version, and those beside it that belong to every version."""
        version, path = folder.name, self._place / LISTS / f"{folder.parent.name}.json"
        try:
            files = _decode_files(path.read_bytes())
        except FileNotFoundError:
            raise ModelFailed(f"{folder}: got no list of its files: run `horologe load {folder.parent.name}`") from None
        wanted = [file for file in files if _belongs_to(file.name, version)]
        manifests = (MANIFEST, f"{version}/{MANIFEST}")
        links = {file.name: downloads.fetch(file) for file in wanted if file.name in manifests}
        _link(folder.parent, links)
        entries = {f"{version}/{name}": entry for name, entry in _files_of(folder).items()}
        hashes = {name: entry.sha256 for name, entry in entries.items()}
        wanted = [file for file in wanted if file.name not in entries or not entries[file.name].url]
        listed = {file.name for file in wanted}
        if absent := [name for name, entry in entries.items() if not entry.url and name not in listed]:
            raise InvalidModel(
                f"{folder.parent.name}/{absent[0]}: got no such file, wanted that of `files` in model.toml"
            )
        downloads.expect(file for file in wanted if not downloads.find(file, hashes.get(file.name, "")))
        return links | {file.name: downloads.fetch(file, hashes.get(file.name, "")) for file in wanted}

    def _link_local(self) -> None:
        """Make the model of a folder a repository of one model: a link to the folder, or to its only version."""
        place = Path(self._source.place).absolute()
        if not place.is_dir():
            raise InvalidModel(f"{place}: got no such folder, wanted the model {self._source.name!r}")
        names = [path.relative_to(place).as_posix() for path in (*place.glob("*"), *place.glob("*/*"))]
        target = f"{self._source.name}/{ONLY_VERSION}" if is_single_version(names) else self._source.name
        model = self._place / self._source.name
        if target == self._source.name and model.is_dir() and not model.is_symlink():
            shutil.rmtree(model)  # the folder was a single version before
        elif target != self._source.name and model.is_symlink():
            model.unlink()
        _replace_link(self._place / target, place, self._place)

    def _remove_unused_files(self) -> None:
        """Remove fetched files that no link leads to, unless they are being fetched."""
        used = {
            Path(os.readlink(path)).name
            for folder, _, names in os.walk(self._place)
            for path in (Path(folder, name) for name in names)
            if path.is_symlink()
        }
        for file in self.files.iterdir():
            with suppress(FileNotFoundError):
                if file.name not in used and time.time() - file.stat().st_mtime > UNUSED_S:
                    file.unlink()


def is_single_version(names: Iterable[str]) -> bool:
    """Return whether the files of a model, by their paths, are those of one version: no folder is a version."""
    at_top = [name for name in names if "/" not in name]
    if any(Path(name).suffix in SUFFIXES for name in at_top):
        return True
    folders = {name.partition("/")[0] for name in names if "/" in name}
    return not any(not folder.startswith((".", "__")) for folder in folders)


def _belongs_to(name: str, version: str) -> bool:
    first, _, rest = name.partition("/")
    return not rest or first == version or first.startswith("__")


def _files_of(folder: Path) -> Mapping[str, FileEntry]:
    """Return `[files]` of a version's `model.toml`; empty if that cannot be read, which is reported later."""
    path = manifest_path(folder)
    try:
        if path is None or b"files" not in read_file(path):
            return {}
        return read_manifest_file(path).files
    except (OSError, ValueError, HorologeError):
        return {}


def _fetch_entry(name: str, entry: FileEntry, downloads: Downloads) -> Path:
    """Return the path of a file of `[files]`. With its hash, the store is asked only for a file that is missing."""
    if entry.sha256 and (known := downloads.find(RemoteFile(name, entry.url), entry.sha256)):
        return known
    file = msgspec.structs.replace(downloads.store(entry.url).describe(entry.url, name), url=entry.url)
    downloads.expect([] if downloads.find(file) else [file])
    return downloads.fetch(file, entry.sha256)


def _check_hashes(folder: Path) -> None:
    """Compare the hashes in `[files]` of files on disk. Raises `InvalidModel` naming the file, got and wanted."""
    for name, entry in _files_of(folder).items():
        if entry.url:
            continue
        try:
            got = file_sha256(folder / name)
        except OSError as error:
            raise InvalidModel(f"{folder / name}: {error.strerror}") from error
        if got != entry.sha256:
            raise InvalidModel(f"{folder / name}: sha256: got {got}, wanted {entry.sha256}, as in model.toml")


def _local_links(folder: Path) -> dict[str, Path]:
    """Return the files of a version on disk by their paths in the model's folder."""
    links = {}
    for file in list_files(folder):
        name = Path(file.path).relative_to(folder.parent) if file.name == MANIFEST else Path(folder.name, file.name)
        links[os.path.normpath(name)] = Path(file.path).absolute()
    return links


def _link(model: Path, links: Mapping[str, Path], version: str = "") -> None:
    """Make links in a model's folder. With `version`, remove all others in that version's folder, and beside it."""
    for name, target in links.items():
        _replace_link(model / name, target, model.parent)
    if version:
        for folder in (model, *(path for path in model.iterdir() if path.name.startswith("__")), model / version):
            for path in folder.iterdir() if folder == model else folder.rglob("*"):
                if path.is_symlink() and path.relative_to(model).as_posix() not in links:
                    path.unlink(missing_ok=True)


def _replace_link(path: Path, target: Path, root: Path) -> None:
    """Make a link at once, from one in the folder above all models: there no other process removes it."""
    if path.is_symlink() and os.readlink(path) == str(target):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = root / f".link-{os.getpid()}"
    made.unlink(missing_ok=True)
    made.symlink_to(target)
    os.replace(made, path)
