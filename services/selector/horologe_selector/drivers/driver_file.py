"""The driver function of a pipeline: `async def run(call, inputs)` in `pipelines/<name>.py`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.user_files import SourceLoader
from horologe_common.status import InvalidInput, describe_exception

if TYPE_CHECKING:
    from horologe_selector.drivers.driver_runs import DriverFunction

FUNCTION = "run"


def load_driver(path: Path) -> DriverFunction:
    """Import the file and return its function `run`. Raises `InvalidInput` with file, line and error."""
    sys.dont_write_bytecode = True  # the folder may be read-only
    name = f"horologe_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InvalidInput(f"{path.name}: line {error.lineno}: {error.msg}") from error
    except BaseException as error:  # SystemExit too: the reason must reach the operator
        if isinstance(error, KeyboardInterrupt):
            raise
        line = next((frame.lineno for frame in reversed(traceback.extract_tb(error.__traceback__))), 0)
        raise InvalidInput(f"{path.name}: line {line}: {describe_exception(error)}") from error
    function = getattr(module, FUNCTION, None)
    if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 2:
        raise InvalidInput(f"{path.name}: got no `async def {FUNCTION}(call, inputs)`, wanted one")
    driver: DriverFunction = function
    return driver
