"""The documentation agrees with the code: generated pages, links, commands, options and settings."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import typer

import horologe
from harness.scripts import load_script
from horologe_cli.local.topology import settings_sections
from horologe_cli.main import app
from horologe_common import wire
from horologe_controller.schedulers import SCHEDULERS
from horologe_gpu_worker.repository.manifest_fields import Manifest
from horologe_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *(ROOT / "experiments" / "results").rglob("*.md"),
    ]
)
FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
SHELLS = ("", "sh", "bash", "console")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        module: ModuleType = load_script("docs/generate.py", "docs_generate")
    return module


def test_generated_pages_are_up_to_date(generate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_named(generate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([], tmp_path) == 0
    assert generate.main(["--check"], tmp_path) == 0
    capsys.readouterr()
    (tmp_path / "wire.md").write_text("old")
    assert generate.main(["--check"], tmp_path) == 1
    assert "wire.md" in capsys.readouterr().err


def test_a_setting_without_a_docstring_is_an_error(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bare(msgspec.Struct):
        """A table."""

        documented: int = 1
        """Something."""
        bare: int = 2

    monkeypatch.setattr(generate, "settings_sections", lambda: {"bare": Bare})
    assert generate.main(["--check"]) == 1
    assert "bare.bare" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in _anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for words in _commands(page.read_text(encoding="utf-8")):
        name = words[1] if len(words) > 1 else ""
        if name.startswith("-") or not name:
            continue
        assert name in commands, f"horologe {name}: no such command"
        command = commands[name]
        if hasattr(command, "commands") and len(words) > 2:  # a group: `horologe application show`
            subcommand = "list" if name == "models" and words[2] not in command.commands else words[2]
            assert subcommand in command.commands, f"horologe {name} {words[2]}: no such command"
            command = command.commands[subcommand]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
            "--help",
            "-h",
        }
        for word in words[2:]:
            if word.startswith("-") and len(word) > 1:
                assert word.partition("=")[0] in known, f"{' '.join(words)}: no option {word}"


def parameters_of(policy: Any) -> tuple[str, ...]:
    """Return the names of the parameters that a scheduling policy declares."""
    return tuple(policy.Parameters.__struct_fields__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_in_pages_exist(page: Path) -> None:
    known = {f"{section}.{name}" for section, kind in settings_sections().items() for name in kind.__struct_fields__}
    known |= {f"controller.policy.{name}" for kind in SCHEDULERS.values() for name in parameters_of(kind)}
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"--set[ =]([a-z]+\.[a-z_.]+)=", text)
    variables = {f"HOROLOGE_{name.replace('.', '_').upper()}": name for name in known}
    named += [variables.get(name, name) for name in re.findall(r"\bHOROLOGE_[A-Z]+_[A-Z_]+\b", text)]
    placeholders = {"HOROLOGE_SECTION_FIELD", "section.field", "HOROLOGE_IGNITER_DATA", "HOROLOGE_SWARM_TESTS"}
    assert set(named) - known - placeholders == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_and_services_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z]+)", "\n".join(_code(text)), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    for name in re.findall(r"(?:^|[`\s])(horologe-(?:edge|frontend|selector|controller|gpu-worker))\b", text):
        assert name in scripts, name


@pytest.mark.parametrize(("page", "kind"), [("models.md", Manifest), ("simulating.md", Scenario)])
def test_every_key_of_a_configuration_file_is_documented(page: str, kind: Any) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in kind.__struct_fields__:
        plain = name.removesuffix("_ns")
        assert re.search(rf"`\[*{plain}\]*`|`{name}`", text), f"{page}: {plain}"


def test_messages_of_the_request_path_have_the_fields_of_the_wire() -> None:
    text = (ROOT / "docs" / "request-path.md").read_text(encoding="utf-8")
    blocks = [ast.parse(body) for _, language, body in FENCE.findall(text) if language == "python"]
    calls = [node for block in blocks for node in ast.walk(block) if isinstance(node, ast.Call)]
    assert len(calls) > 10
    for call in calls:
        assert isinstance(call.func, ast.Name)
        fields = getattr(wire, call.func.id).__struct_fields__
        assert {str(keyword.arg) for keyword in call.keywords} <= set(fields), call.func.id
        assert len(call.args) + len(call.keywords) <= len(fields)


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub creates for headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _code(text: str) -> list[str]:
    """Return the lines of shell blocks and the texts between backticks."""
    blocks = [body for _, language, body in FENCE.findall(text) if language in SHELLS]
    return [
        *(line for body in blocks for line in _joined(body).splitlines()),
        *re.findall(r"`([^`\n]+)`", FENCE.sub("", text)),
    ]


def _commands(text: str) -> list[list[str]]:
    """Return the words of every `horologe` command."""
    commands = []
    for line in _code(text):
        match = re.search(r"(?:^|[/|&(]\s*|\s)(horologe\s[^|&;#]*)", line.strip().removeprefix("$ "))
        if match and not re.search(r"\b(import|pip|from)\b", line):
            try:
                commands.append(shlex.split(match[1].replace("…", "X")))
            except ValueError:  # a quotation that continues in the next line
                commands.append(match[1].split())
    return commands


def _joined(block: str) -> str:
    return block.replace("\\\n", " ")


def test_the_reference_of_the_sdk_has_every_public_name() -> None:
    page = (ROOT / "docs" / "sdk-reference.md").read_text()
    shown = re.findall(r"^::: horologe\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted({*horologe.__all__} - {"__version__"})
    assert all(vars(getattr(horologe, name))["__doc__"] for name in shown)
