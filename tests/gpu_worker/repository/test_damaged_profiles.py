"""Damaged profiles in the cache of a worker: named in the log, and measured again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from harness.builders import a_profile, a_spec
from harness.damaged_files import damaged_values, make_folder
from horologe_gpu_worker.repository.profiling import ProfileCache
from horologe_gpu_worker.runtime import RowsFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC, OTHER = a_spec(), a_spec("product")
DAY_NS = 86_400 * 10**9

DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes((7 * at * at + 3) % 251 for at in range(4096))),
    "no UTF-8": lambda path: path.write_bytes(path.read_bytes().replace(b"sum", b"s\xffm")),
    "another type": lambda path: path.write_bytes(b"[1, 2, 3]"),
    "MessagePack": lambda path: path.write_bytes(msgspec.msgpack.encode({"load_ns": 1})),
    "NaN": lambda path: path.write_bytes(path.read_bytes().replace(b'"load_ns": ', b'"load_ns": NaN')),
    "nested": lambda path: path.write_bytes(b'{"further": ' + b"[" * 100_000),
    "huge number": lambda path: path.write_bytes(
        path.read_bytes().replace(b'"load_ns": ', b'"load_ns": 1' + b"0" * 300)
    ),
    "missing field": lambda path: path.write_bytes(path.read_bytes().replace(b"load_ns", b"loud_ns")),
    "folder": make_folder,
}


def a_cache(folder: Path) -> ProfileCache:
    cache = ProfileCache(folder)
    for spec in (SPEC, OTHER):
        cache.write_profile(spec, a_profile())
    return cache


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_profile_is_not_used_and_the_others_are(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = a_cache(tmp_path)
    DAMAGE[damage](cache.path(SPEC))
    assert cache.read_profile(SPEC) is None
    assert caplog.text.count("stored profile not used") == 1
    assert cache.read_profile(OTHER) == a_profile()
    cache.write_profile(SPEC, a_profile())
    assert cache.read_profile(SPEC) == (None if damage == "folder" else a_profile())


def test_no_damaged_value_gives_a_time_out_of_range(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    path = cache.path(SPEC)
    for name, damaged in damaged_values(msgspec.json.decode(path.read_bytes())):
        path.write_bytes(msgspec.json.encode(damaged))
        try:
            profile = cache.read_profile(SPEC)
        except RowsFailed:  # the reason may be any text
            continue
        if profile:
            assert set(SPEC.batch_sizes) <= set(profile.exec_ns), name
            assert all(0 <= time_ns <= DAY_NS for time_ns in (profile.load_ns, *profile.exec_ns.values())), name


def test_a_missing_profile_is_nothing_to_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert ProfileCache(tmp_path).read_profile(SPEC) is None
    assert not caplog.text
