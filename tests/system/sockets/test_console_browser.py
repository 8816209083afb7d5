"""The console in headless Chromium: what it shows, the keyboard, keys, colours, and a phone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fakes.key_entries import entry
from system.console_page import Page, browser, needs_chromium
from system.console_scene import SceneGateway
from system.http_server_thread import HttpServerThread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["browser"]

pytestmark = needs_chromium
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def http() -> Iterator[HttpServerThread]:
    with HttpServerThread(gateway=SceneGateway) as http:
        yield http


@pytest.fixture
def desk(browser: Any, http: HttpServerThread) -> Iterator[Page]:
    page = Page(browser, http.server.url)
    yield page
    page.context.close()
    assert page.errors == []
    assert page.hosts == {http.address}


def test_it_shows_traffic_refusals_devices_and_decisions(desk: Page) -> None:
    page = desk.wait_live(6)
    traffic = page.inner_text("#traffic")
    for text in ("resnet50/1", "video/1", "pipeline", "application"):
        assert text in traffic
    assert "horologe" in page.inner_text("#facts")
    assert "answered in time" in page.inner_text("#summary").lower()
    page.wait_for_selector("#refusals td:has-text('work ahead')", timeout=15_000)
    devices = page.inner_text("#devices")
    assert "GPU-7" in devices
    assert "40%" in devices
    assert "resnet50/1 (planned)" in devices
    assert "212 queries/s in 5 s, planned for 180" in page.inner_text("#tuner")


def test_the_keyboard_pauses_zooms_and_selects(desk: Page) -> None:
    page = desk.wait_live(6)
    page.keyboard.press("p")
    page.wait_for_selector("#state[data-state=paused]")
    span = page.inner_text("#span")
    page.keyboard.press("+")
    page.wait_for_function("before => document.getElementById('span').textContent !== before", arg=span)
    page.focus("#timeline")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("]")
    page.wait_for_function("() => document.getElementById('detail').textContent.includes('predicted')")
    first = page.inner_text("#detail")
    page.keyboard.press("[")
    page.keyboard.press("]")
    page.keyboard.press("]")
    page.wait_for_function("before => document.getElementById('detail').textContent !== before", arg=first)
    shown, frames = page.inner_text("#traffic"), page.evaluate("state.frames.length")
    page.wait_for_function("before => state.frames.length >= before + 3", arg=frames)
    assert page.inner_text("#traffic") == shown
    page.keyboard.press("End")
    page.wait_for_selector("#state[data-state=live]")


def test_every_control_is_reached_by_tab(desk: Page) -> None:
    page = desk.wait_live(6)
    reached = []
    for _ in range(10):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    for control in ("skip", "pause", "zoom-out", "zoom-in", "filter", "export", "timeline"):
        assert control in reached


def test_the_filter_narrows_every_part(desk: Page) -> None:
    page = desk.wait_live(6)
    page.fill("#filter", "speech")
    page.wait_for_function("() => document.querySelectorAll('#traffic tbody tr').length === 1")
    assert "speech/2" in page.inner_text("#traffic")
    page.keyboard.press("p")
    assert page.get_attribute("#state", "data-state") == "live", "letters in the field are no commands"


def test_the_export_is_a_chrome_trace(desk: Page, tmp_path: Path) -> None:
    page = desk.wait_live(6)
    page.wait_for_timeout(1200)
    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    events = json.loads(file.read_text())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert lanes == {"EXEC", "EXEC predicted", "LOAD", "LOAD predicted"}
    actions = [event for event in events if event["ph"] == "X"]
    assert len(actions) > 100
    assert all(event["dur"] >= 0 and event["args"]["predicted_ms"] >= 0 for event in actions)


def test_a_key_is_asked_for_and_stays_in_the_tab(browser: Any) -> None:
    keys = {"viewer": entry("secret", observe=True), "user": entry("user", infer=("*",))}
    with HttpServerThread(keys, gateway=SceneGateway) as http:
        viewer = Page(browser, http.server.url)
        page = viewer.page
        page.wait_for_selector("#key")
        assert not page.is_visible("#content")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#sign-in-error:has-text('does not accept')")
        page.fill("#key", "user")
        page.keyboard.press("Enter")
        page.wait_for_selector("#sign-in-error:has-text('observe')")
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        viewer.wait_live(6)
        page.reload()
        viewer.wait_live(6)
        page.click("#sign-out")
        page.wait_for_selector("#key")
        assert page.evaluate("sessionStorage.length") == 0
        viewer.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: Any, http: HttpServerThread, scheme: str) -> None:
    viewer = Page(browser, http.server.url, viewport=PHONE, color_scheme=scheme, has_touch=True, is_mobile=True)
    page = viewer.wait_live(6)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.evaluate(
        "[...document.querySelectorAll('.controls button')].filter(b => b.offsetHeight < 40).map(b => b.id)"
    )
    assert small == []
    viewer.context.close()
    assert viewer.errors == []


CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => {
    const [r, g, b] = style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16) / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [low, high] = [read(one), read(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = ["--text", "--muted", "--good", "--warn", "--bad", "--accent"];
  const bars = Array.from({ length: 10 }, (_, number) => `--m${number}`);
  return {
    text: Object.fromEntries(texts.map((name) => [name, Math.min(ratio(name, "--panel"), ratio(name, "--page"))])),
    bars: Object.fromEntries(bars.map((name) => [name, ratio(name, "--panel")])),
  };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(browser: Any, http: HttpServerThread, scheme: str) -> None:
    viewer = Page(browser, http.server.url, color_scheme=scheme)
    contrasts = viewer.page.evaluate(CONTRASTS)
    viewer.context.close()
    assert {name: ratio for name, ratio in contrasts["text"].items() if ratio < 4.5} == {}
    assert {name: ratio for name, ratio in contrasts["bars"].items() if ratio < 3.0} == {}
