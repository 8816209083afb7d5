"""Hooks of mkdocs.yml: the navigation is the list in docs/README.md, and pages outside docs/ are part of the site.

Links to sources, which the site does not contain, become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/**/*.md",
    "deploy/**/*.md",
    "experiments/results/**/*.md",
    "experiments/results/**/*.png",
)
LINK = re.compile(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```\s*?$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Set the navigation: the sections of docs/README.md, then all decisions."""
    sections = re.split(
        r"^(?:For (\w+)|(\w+)[^\n:]*):", (DOCS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    linked: set[str] = set()
    config.nav = ["README.md"]
    for users, title, text in zip(sections[1::3], sections[2::3], sections[3::3], strict=True):
        pages = [_site_path(DOCS, link) for _, link in LINK.findall(text)]
        pages = [page for page in dict.fromkeys(pages) if page and page not in linked]
        linked.update(pages)
        config.nav.append({(users or title).capitalize(): pages})
    rest = sorted(path for path in _pages() if path not in linked | {"README.md"})
    config.nav.append({"More": rest})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures outside docs/, under their paths in the repository."""
    for path in _outside():
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links that leave a page's tree."""
    source = Path(page.file.abs_src_path).parent
    here = Path(page.file.src_uri).parent

    def replace(match: re.Match[str]) -> str:
        text, link = match[1], match[2]
        if re.match(r"\w+:|#", link):
            return match[0]
        target = _site_path(source, link)
        return f"[{text}]({os.path.relpath(target, here)}{_anchor(link)})" if target else text

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def _outside() -> list[Path]:
    return sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern))


def _pages() -> list[str]:
    own = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    return [*own, *(str(path.relative_to(ROOT)) for path in _outside() if path.suffix == ".md")]


def _anchor(link: str) -> str:
    return "#" + link.partition("#")[2] if "#" in link else ""


def _site_path(folder: Path, link: str) -> str:
    """Return the path of a link's target in the site; empty if the site does not contain it."""
    target = Path(os.path.normpath(folder / link.partition("#")[0]))
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    return str(target.relative_to(ROOT)) if target in _outside() else ""
