"""Paths in what lanes report: those of models begin at the repository, wherever that is."""

from __future__ import annotations

from typing import Any

import pytest

from harness.builders import a_spec
from horologe_common.wire import ModelReport
from horologe_gpu_worker.core.lanes import Finished, VersionScanned
from horologe_gpu_worker.execution.shown_paths import ShownPaths

HERE = ("/srv/models", "/var/cache/horologe")


def reason_of(text: str, repository: str = HERE[0]) -> str:
    message: Any = ShownPaths(repository, HERE[1]).show(Finished(1, "load", 9, 0, 0, reason=text))
    return str(message.reason)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/digits/1/model.toml: got no file", "digits/1/model.toml: got no file"),
        ("serves the content before: /srv/models/digits/1: changed", "serves the content before: digits/1: changed"),
        ("got no '/srv/models/a/1' (/srv/models/a)", "got no 'a/1' (a)"),
        ("/var/cache/horologe/repositories/0a1b/a/1: full", "a/1: full"),
        ("/var/cache/horologe/repositories/0a1b/.views/a/1: full", "a/1: full"),
        ("/backup/srv/models/a: no", "/backup/srv/models/a: no"),
        ("/srv/models: no folder", "/srv/models: no folder"),
        ("", ""),
    ],
)
def test_a_reason_begins_at_the_repository(text: str, shown: str) -> None:
    assert reason_of(text) == shown


@pytest.mark.parametrize("repository", ["models", "models/", "./models"])
def test_a_relative_repository(repository: str) -> None:
    assert reason_of("models/a/1: no", repository) == "a/1: no"
    assert reason_of("other-models/a, ../models/a", repository) == "other-models/a, ../models/a"


def test_reports_and_rows_have_no_folder_of_the_server() -> None:
    shown, report = ShownPaths(*HERE), ModelReport(a_spec(), None, "/srv/models/a: no", "/srv/models/a: slow")
    scanned: Any = shown.show(VersionScanned(1, report))
    assert (scanned.report.reason, scanned.report.note) == ("a: no", "a: slow")
    finished: Any = shown.show(Finished(1, "scan", 0, 0, 0, models=(report,), failed=((3, "/srv/models/a: no"),)))
    assert (finished.models[0].reason, finished.failed) == ("a: no", [(3, "a: no")])
