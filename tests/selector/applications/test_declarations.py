"""Limits of application declarations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horologe_common.applications import BYTES_LIMIT, MODELS_LIMIT, Application, check_application
from horologe_common.status import InvalidInput
from horologe_common.wire import PEER_HEADER_LIMIT
from horologe_selector.core.applications.application_registry import APPLICATIONS_LIMIT


@pytest.mark.parametrize("name", ["/", "m/", "/1", "m/1/2"])
@pytest.mark.parametrize("shadow", [False, True])
def test_models_have_a_name_and_an_optional_version(name: str, shadow: bool) -> None:
    with pytest.raises(InvalidInput, match=f"^{'shadows' if shadow else 'models'}: got '{name}', wanted name"):
        check_application(Application("a", ("ok", "ok/2") if shadow else (name,), shadows=(name,) if shadow else ()))


def test_the_error_for_a_long_list_is_short() -> None:
    with pytest.raises(InvalidInput) as error:
        check_application(Application("a", tuple(f"m{number}" for number in range(100_000))))
    assert error.value.reason == "models, shadows: got 100000 names, wanted 1 to 64, each once"


@pytest.mark.parametrize("fields", [{"default": float(1 << 53)}, {"default": -1e300, "task": "regression"}])
def test_the_largest_defaults_are_valid(fields: dict[str, Any]) -> None:
    check_application(Application("a", ("m",), **fields))


def test_the_maximum_number_of_models_with_long_names_fits() -> None:
    application = Application("a" * 128, tuple(f"{number:0100}" for number in range(MODELS_LIMIT)))
    check_application(application)
    assert len(msgspec.msgpack.encode(application)) > BYTES_LIMIT // 2


def test_all_applications_fit_into_one_announcement() -> None:
    assert APPLICATIONS_LIMIT * BYTES_LIMIT < PEER_HEADER_LIMIT
