"""ONNX Runtime models. Its telemetry is switched off here, before any module of this package imports it.

Version 1.31 writes a device id and a database to the user's cache folder at import, and may send events.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def version() -> str:
    """Return the version of ONNX Runtime. Raises ImportError if it is not installed."""
    import onnxruntime

    return str(onnxruntime.__version__)
