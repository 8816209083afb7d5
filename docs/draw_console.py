"""Writes console.png: the console of a system under load, in Chromium.

    python docs/draw_console.py
    python docs/draw_console.py --load 1.2 --seconds 20

Two workers emulate a V100: they sleep for the times that Clockwork's appendix A has for five models. The load
generator, the edge and Chromium share the cores, so the figures in the picture are no measurements.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from playwright.async_api import async_playwright

from horologe import AsyncClient
from horologe_cli.local.local_system import LocalSystem
from horologe_cli.local.topology import SystemOptions
from horologe_load.targets import ModelLoad

PICTURE = Path(__file__).resolve().parent / "console.png"
SIZE = {"width": 1280, "height": 705}
WORKERS = 2
SLO_MS = 100.0
ZOOM = 5
"""Steps from the span that the console shows first, 10 s, to about 200 ms."""
SIGNATURE = """runtime = "emulated"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]
"""


class Emulated(NamedTuple):
    """A model, its share of the load, and its time in milliseconds by batch size."""

    name: str
    share: float
    exec_ms: dict[int, float]

    def write(self, repository: Path) -> None:
        """Write the model's folder."""
        version = repository / self.name / "1"
        version.mkdir(parents=True)
        times = ", ".join(f"{size} = {time}" for size, time in self.exec_ms.items())
        version.joinpath("model.toml").write_text(f"{SIGNATURE}[emulated]\nexec_ms = {{ {times} }}\n")

    def rate(self, load: float) -> float:
        """Return the requests per second that need `share * load` of the workers in the largest batches."""
        size = max(self.exec_ms)
        return load * WORKERS * self.share * size / self.exec_ms[size] * 1e3


MODELS = (
    Emulated("resnet18", 0.1, {1: 1.32, 2: 1.81, 4: 2.48, 8: 4.42, 16: 7.12}),
    Emulated("resnet50", 0.3, {1: 2.73, 2: 4.05, 4: 5.87, 8: 9.93, 16: 17.3}),
    Emulated("resnet152", 0.2, {1: 8.21, 2: 11.66, 4: 17.03, 8: 27.6, 16: 48.54}),
    Emulated("inception", 0.2, {1: 4.46, 2: 6.85, 4: 10.99, 8: 16.45, 16: 26.17}),
    Emulated("xception", 0.2, {1: 4.49, 2: 6.64, 4: 10.46, 8: 18.53, 16: 34.55}),
)


async def draw(system: LocalSystem, load: float, seconds: float, chromium: str) -> None:
    """Send load, and take the picture near its end."""
    rows = np.zeros((64, 16), np.float32)
    async with AsyncClient(system.topology.clients[0]) as client, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport=SIZE)
        await page.goto(f"{system.topology.http}/console")
        loads = [
            asyncio.create_task(ModelLoad(client, model.name, rows, SLO_MS, seed).offer_rate(model.rate(load), seconds))
            for seed, model in enumerate(MODELS)
        ]
        await asyncio.sleep(0.8 * seconds)
        await page.wait_for_selector(f"#traffic tbody tr:nth-child({len(MODELS)})")
        await page.keyboard.press("p")
        for _ in range(ZOOM):
            await page.keyboard.press("+")
        await page.focus("#timeline")
        for key in ("ArrowDown", "]"):
            await page.keyboard.press(key)
        await page.screenshot(path=PICTURE)
        await asyncio.gather(*loads)
        await browser.close()


def main() -> None:
    """Start the system, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=0.65, help="load, as a part of the workers' time")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        raise SystemExit("chromium: got no program, wanted chromium or google-chrome in PATH")
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "models")
        for model in MODELS:
            model.write(repository)
        sets = (f"worker.cache={folder}", f"profiler.state={folder}", f"selector.state={folder}", "worker.device=v100")
        addresses = "127.0.0.1:0", ("tcp://127.0.0.1:0",), "off"
        system = LocalSystem(SystemOptions(str(repository), WORKERS, False, *addresses, sets=sets), lambda *_: None)
        with system:
            system.wait_ready(120.0)
            asyncio.run(draw(system, options.load, options.seconds, chromium))


if __name__ == "__main__":
    main()
