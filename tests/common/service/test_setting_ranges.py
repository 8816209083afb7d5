"""Every setting of every service, with values out of its range: an error that names it, from each source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from horologe_cli.local.topology import SystemOptions, build_topology, settings_sections
from horologe_common.service.settings import SECTIONS, SettingsError, load_settings
from horologe_common.setting_ranges import Range, describe_range, format_number, range_of

if TYPE_CHECKING:
    from pathlib import Path

ALL = [
    (section, kind, field)
    for section, kind in settings_sections().items()
    for field in msgspec.structs.fields(kind)
    if field.name != "policy"  # a table: tests/controller/scheduling/test_policy_parameters.py
]
NUMBERS = [(section, kind, field) for section, kind, field in ALL if range_of(field.name, field.type)]
WORDS = ["nan", "inf", "-inf", "-1", "1e30", "many", "", "[]", "0x10", "1_0 0", "5 parsecs", "true"]
VALUES: list[Any] = [math.nan, math.inf, -math.inf, -1, -0.5, 10**30, 1e30, "nan", "many", [1], {"a": 1}, True, ""]


def name_of(value: Any) -> str:
    return f"{value[0]}.{value[2].name}"


def limits_of(field: Any) -> Range:
    limits = range_of(field.name, field.type)
    assert limits is not None
    return limits


def load(section: str, kind: Any, name: str, value: Any, **env: str) -> Any:
    return getattr(load_settings(kind, section, None, env, {name: value} if value is not None else None), name)


def test_the_sections_are_those_of_the_services() -> None:
    assert list(settings_sections()) == list(SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_number_out_of_its_range_is_an_error_that_names_the_setting(section: str) -> None:
    for _, kind, field in [item for item in NUMBERS if item[0] == section]:
        for value in VALUES:
            with pytest.raises(SettingsError) as raised:
                load(section, kind, field.name, value)
            assert raised.value.reason.startswith(f"setting {section}.{field.name}: got {value!r}, wanted ")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_text_that_is_no_number_of_the_range_is_an_error_that_names_the_setting(section: str) -> None:
    for _, kind, field in [item for item in NUMBERS if item[0] == section]:
        has_unit = field.name.endswith(("_ns", "_bytes"))
        for word in WORDS:
            for text in [word, f"{word}s", f"{word}MiB"] if has_unit else [word]:
                with pytest.raises(SettingsError, match=rf"setting {section}\.{field.name}: got .*, wanted "):
                    load(section, kind, field.name, None, **{f"HOROLOGE_{section}_{field.name}".upper(): text})


@pytest.mark.parametrize("setting", NUMBERS, ids=name_of)
def test_the_ends_of_the_range_are_accepted_and_what_is_beyond_is_not(setting: Any) -> None:
    section, kind, field = setting
    limits = limits_of(field)
    base = float if isinstance(field.default, float) else int
    step = 1 if base is int else 1e-9
    for value in (limits.low + step * limits.is_open, limits.high):
        assert load(section, kind, field.name, base(value)) == base(value)
    below = limits.low if limits.is_open else limits.low - 1
    for value in (below, limits.high * 2 + 1):
        with pytest.raises(SettingsError, match=rf"{section}\.{field.name}: got .*, wanted"):
            load(section, kind, field.name, base(value))
    zero = limits.contains(0)
    if not zero:
        with pytest.raises(SettingsError):
            load(section, kind, field.name, 0)
    assert limits.contains(field.default)


@pytest.mark.parametrize("setting", [item for item in ALL if item not in NUMBERS], ids=name_of)
def test_other_settings_refuse_values_of_other_types(setting: Any) -> None:
    section, kind, field = setting
    for value in [{"a": 1}, 5, 1.5, [[1]], [5], "with\0null"]:
        if field.type is not bool or value != 1:
            with pytest.raises(SettingsError, match=rf"setting {section}\.{field.name}: got "):
                load(section, kind, field.name, value)


@pytest.mark.parametrize("section", ["frontend", "selector", "worker"])
@pytest.mark.parametrize("name", ["", "a/b", "a#b", "a b", "ä", "x" * 65, "a\n"])
def test_names_of_instances_are_parts_of_addresses(section: str, name: str) -> None:
    kind = settings_sections()[section]
    with pytest.raises(SettingsError, match=rf"setting {section}\.name: got"):
        load(section, kind, "name", name)
    assert load(section, kind, "name", "gpu-worker_1.a") == "gpu-worker_1.a"


CHOICES = {
    "log.level": "loud", "controller.fairness": "unfair", "tuner.scaler": "magic", "http.refused_status": 500,
    "worker.share_mechanism": "half", "tuner.demand": "all",
}  # fmt: skip


@pytest.mark.parametrize("setting", CHOICES)
def test_a_choice_that_there_is_not_is_an_error_that_lists_the_choices(setting: str) -> None:
    section, _, field = setting.partition(".")
    with pytest.raises(SettingsError, match=rf"setting {section}\.{field}: got .*, wanted one of "):
        load(section, settings_sections()[section], field, CHOICES[setting])


FILES: dict[str, str | bytes] = {
    "unknown section": "[controler]\nscheduler = 'edf'\n",
    "top level": "scheduler = 'edf'\n",
    "array of tables": "[[http]]\nport = 1\n",
    "not utf-8": b"[http]\nhost = '\xff'\n",
    "not toml": "[http\n",
    "twice": "[http]\nport = 1\nport = 2\n",
    "deep": "[http]\nport = " + "[" * 5000 + "]" * 5000 + "\n",
    "unknown field": "[http]\nprot = 1\n",
    "huge number": "[http]\nport = " + "9" * 5000 + "\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_an_error_that_names_the_place(name: str, tmp_path: Path) -> None:
    file, text = tmp_path / "horologe.toml", FILES[name]
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as raised:
        load_settings(settings_sections()["http"], "http", file, {})
    assert str(file) in raised.value.reason or "http.prot" in raised.value.reason
    assert "\n" not in raised.value.reason


@pytest.mark.parametrize("text", ["controler.scheduler=edf", "nothing.x=1", "scheduler=edf", "log.level"])
def test_horologe_up_refuses_unknown_sections_before_it_starts_anything(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no such section; the sections are links|wanted SECTION.FIELD=VALUE"):
        build_topology(SystemOptions(str(tmp_path), sets=(text,), metrics="off"), tmp_path, {})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("x_ns", 0, "0"), ("x_ns", 1_500_000, "1500us"), ("x_ns", 60_000_000_000, "1min"), ("x_bytes", 1 << 20, "1MiB"),
        ("x_bytes", 1000, "1000B"), ("x", 5, "5"), ("x", 0.5, "0.5"), ("x", 1e6, "1e+06"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_in_settings(name: str, value: float, text: str) -> None:
    assert format_number(name, value) == text


def test_ranges_in_words() -> None:
    assert describe_range("x_ns", Range(0, 10_000_000)) == "0 to 10ms"
    assert describe_range("x", Range(0, 1, True)) == "more than 0, at most 1"
