"""The console in headless Chromium."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
DESK = {"width": 1280, "height": 1000}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Page:
    """The console of a server, its errors, and the hosts from which it has loaded something."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.context = browser.new_context(**{"viewport": DESK, **options})
        self.page = self.context.new_page()
        self.page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.goto(f"{url}/console")

    def wait_live(self, rows: int) -> Any:
        """Return the page once it is live and its table of traffic has as many rows."""
        self.page.wait_for_selector("#state[data-state=live]")
        self.page.wait_for_selector(f"#traffic tbody tr:nth-child({rows})")
        return self.page
