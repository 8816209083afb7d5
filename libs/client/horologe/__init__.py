"""The SDK of Horologe: clients for numpy arrays.

from horologe import Client
with Client("tcp://127.0.0.1:8003") as client:
    y = client.predict("digits-cnn", x, slo_ms=50)
"""

from importlib.metadata import PackageNotFoundError, version

from horologe.async_client import AsyncClient
from horologe.client import Client
from horologe.core.reply import Reply
from horologe.transport.blocking_link import Handle
from horologe_common.applications import Application
from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import (
    Cancelled,
    Forbidden,
    HorologeError,
    InvalidInput,
    Late,
    Lost,
    MissingInput,
    ModelFailed,
    ProtocolMismatch,
    Refused,
    Status,
    TooLarge,
    Unauthenticated,
    UnknownModel,
)
from horologe_common.wire import ApplicationState, Description, ModelState, ModelStatistics

try:
    __version__ = version("horologe")
except PackageNotFoundError:  # run from the sources without an installation
    __version__ = "0+unknown"

__all__ = [
    "Application", "ApplicationState", "AsyncClient", "Cancelled", "Client", "Description", "Forbidden", "Handle",
    "HorologeError", "InvalidInput", "Late", "Lost", "MissingInput", "ModelFailed", "ModelSpec", "ModelState",
    "ModelStatistics", "ProtocolMismatch", "Refused", "Reply", "Status", "TensorSpec", "TooLarge", "Unauthenticated",
    "UnknownModel", "__version__",
]  # fmt: skip
