"""Process that lists a remote repository: `python -m horologe_gpu_worker.fetching.listing_process SOURCE CACHE MODEL`.

An empty MODEL lists all models. It keeps the libraries of the stores, and their threads, out of the worker.
"""

from __future__ import annotations

import sys
from pathlib import Path

from horologe_common.status import HorologeError
from horologe_gpu_worker.fetching.downloads import Downloads
from horologe_gpu_worker.fetching.mirror import Mirror


def main(arguments: list[str]) -> int:
    text, cache, model = arguments
    try:
        mirror = Mirror(text, Path(cache))
        for fault in mirror.write_lists(Downloads(mirror.files, lambda text: None), model):
            sys.stdout.write(f"{fault.encode(errors='replace').decode()}\n")
    except HorologeError as error:
        sys.stderr.write(error.reason.encode(errors="replace").decode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
