"""The modules that one HTTP request passes: docs/request-path.md names exactly these, and they stay few."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from sim.request_path import ROOT, trace_request

if TYPE_CHECKING:
    from sim.request_path import Trace

pytestmark = pytest.mark.interpreted  # compiled code leaves no trace of lines

PAGE = ROOT / "docs" / "request-path.md"
LINKED_MODULE = re.compile(r"^\| \[[^\]]*\]\(\.\./(\S+\.py)\)", re.MULTILINE)
MODULES = 39


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_request()


def test_the_request_is_answered(trace: Trace) -> None:
    assert trace.response.startswith(b"HTTP/1.1 200 ")


def test_the_page_names_the_modules_that_the_request_passes(trace: Trace) -> None:
    named = set(LINKED_MODULE.findall(PAGE.read_text(encoding="utf-8")))
    assert named == set(trace.files)


def test_the_request_passes_few_modules(trace: Trace) -> None:
    assert len(trace.files) <= MODULES, "\n".join(trace.files)
