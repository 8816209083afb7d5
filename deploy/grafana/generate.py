"""Writes the Grafana dashboards from horologe_dashboards/.

python deploy/grafana/generate.py            # write dashboards/*.json
python deploy/grafana/generate.py --check    # exit code 1, and the name of each file that is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402  # behind the path of the dashboards
from horologe_dashboards import build_dashboards  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Write or check the files. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    check = parser.parse_args(arguments).check
    texts = {
        f"{name}.json": JSONEncoder(sort_keys=True, indent=1).encode(board) + "\n"
        for name, board in build_dashboards().items()
    }
    folder = FOLDER / "dashboards"
    stale = sorted({path.name for path in folder.glob("*.json")} - texts.keys())
    stale += [
        name for name, text in texts.items() if not (folder / name).exists() or (folder / name).read_text() != text
    ]
    for name in stale:
        sys.stderr.write(f"deploy/grafana/dashboards/{name}: {'stale: run `make docs`' if check else 'written'}\n")
        if not check and name in texts:
            (folder / name).write_text(texts[name])
        elif not check:
            (folder / name).unlink()
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
