"""Applications: models behind one name, with an SLO and a policy that learns from feedback (Clipper section 5)."""

from __future__ import annotations

from math import isfinite

import msgspec

from horologe_common.status import InvalidInput, UnknownModel

TASKS = ("classes", "regression", "any")
NAME_LIMIT = 128
"""Characters of the name of an application, a model or a context."""
MODELS_LIMIT = 64
CONTEXTS_LIMIT = 1_000_000_000
BYTES_LIMIT = 8 << 10
"""Size of an encoded declaration. A selector announces up to 1,000 in one header of at most 16 MB."""
EXACT_INTEGER_LIMIT = 1 << 53
"""Integers up to this are exact as 64-bit floats."""


class Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A declared application. The form is the same in JSON, in the store and on the wire.

    `models` and `shadows` are names (the version that requests reach) or `name/version`. Shadows predict like models,
    but no answer uses their predictions.
    """

    name: str
    models: tuple[str, ...]
    slo_ms: float = 100.0
    """Deadline of requests without one of their own."""
    task: str = "classes"
    """`classes`: a prediction is an integer, or the index of the largest score. `regression`: a number. `any`: outputs
    are passed on unchanged, which only policies that use one model can do."""
    output: str = ""
    """Output that holds the prediction. Empty: the first output of a model."""
    policy: str = ""
    """Empty: `static` for one model, `exp4` for several."""
    settings: dict[str, float | dict[str, float]] = {}
    """Settings of the policy."""
    loss: str = ""
    """Empty: `zero_one` for classes, `absolute` for regression."""
    default: float | None = None
    """Answer if no prediction arrives in time. None: the request fails."""
    confidence: float = 0.0
    """If the share of agreeing models is below this, the answer is the default."""
    shadows: tuple[str, ...] = ()
    cache: bool = True
    """Answer equal inputs from the prediction cache, for `cache_ttl_ns` of the selector."""
    contexts: int = 10_000
    """Contexts with a state of their own. Beyond this number the least recently used is deleted."""


def check_application(application: Application) -> None:
    """Raise `InvalidInput`, with the field and the expected value, for an invalid declaration."""
    check_name("name", application.name)
    if "/" in application.name or application.name in (".", ".."):
        raise InvalidInput(f"name: got {application.name!r}, wanted no slash, and neither . nor ..: it is in URLs")
    _check_models(application)
    if application.task not in TASKS:
        raise InvalidInput(f"task: got {application.task!r}, wanted one of {', '.join(TASKS)}")
    if not 0 < application.slo_ms <= 3_600_000:
        raise InvalidInput(f"slo_ms: got {application.slo_ms}, wanted more than 0, at most an hour")
    if not 0 <= application.confidence <= 1:
        raise InvalidInput(f"confidence: got {application.confidence}, wanted 0 to 1")
    if not 1 <= application.contexts <= CONTEXTS_LIMIT:
        raise InvalidInput(f"contexts: got {application.contexts}, wanted 1 to {CONTEXTS_LIMIT}")
    if application.default is not None:
        _check_default(application.task, application.default)
    if (size := len(msgspec.msgpack.encode(application))) > BYTES_LIMIT:
        raise InvalidInput(f"application: got {size} bytes, at most {BYTES_LIMIT}")


def _check_models(application: Application) -> None:
    names = (*application.models, *application.shadows)
    if not application.models or len(names) > MODELS_LIMIT:
        shown = f"{len(names)} names" if names else "[]"
        raise InvalidInput(f"models, shadows: got {shown}, wanted 1 to {MODELS_LIMIT}, each once")
    for field, texts in (("models", application.models), ("shadows", application.shadows)):
        for text in texts:
            check_name(field, text)
            name, slash, version = text.partition("/")
            if not name or "/" in version or (slash and not version):
                raise InvalidInput(f"{field}: got {text!r}, wanted name or name/version")
    if len(set(names)) != len(names):
        raise InvalidInput(f"models, shadows: got {list(names)}, wanted each once")


def _check_default(task: str, default: float) -> None:
    if task == "any":
        raise InvalidInput("default: an application of task 'any' cannot have one")
    if not isfinite(default):
        raise InvalidInput(f"default: got {default}, wanted a finite number")
    if task == "classes" and (default % 1 or abs(default) > EXACT_INTEGER_LIMIT):
        raise InvalidInput(
            f"default: got {default}, wanted a whole number up to {EXACT_INTEGER_LIMIT}, the task being classes"
        )


def check_name(field: str, text: str) -> None:
    """Raise `InvalidInput` unless the text is a valid name."""
    if not 0 < len(text) <= NAME_LIMIT or not text.isprintable() or text != text.strip():
        raise InvalidInput(f"{field}: got {text[:NAME_LIMIT]!r}, wanted 1 to {NAME_LIMIT} printable characters")


def undeclared_application(name: str) -> UnknownModel:
    """Return the error for an application that is not declared."""
    return UnknownModel(f"application: got {name!r}, which is not declared")
