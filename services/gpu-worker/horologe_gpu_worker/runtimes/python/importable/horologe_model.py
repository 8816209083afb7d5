"""Stands for the `model.py` of a Python model: whoever imports this module by its name gets the model's module.

The process of the model has this folder in `sys.path`, and `HOROLOGE_MODEL_FILE` in its environment. Processes that the
model starts (multiprocessing with spawn or forkserver, joblib) get both, so that they can unpickle the functions and
classes of `model.py`.
"""

import importlib.util
import os
import sys

from horologe_common.service.user_files import SourceLoader

path = os.environ["HOROLOGE_MODEL_FILE"]
spec = importlib.util.spec_from_file_location(__name__, path, loader=SourceLoader(__name__, path))
assert spec is not None
assert spec.loader is not None
module = sys.modules[__name__] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
