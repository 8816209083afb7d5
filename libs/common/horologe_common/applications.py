"""What an application is: models behind one name, an SLO, a policy that learns from feedback (Clipper section 5)."""

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
"""Of a declaration, encoded. A selector announces all of its 1,000 at once, in a header of 16 MB at most."""
EXACT = 1 << 53
"""Whole numbers up to here are floats without loss."""


class Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """As declared by its owner. The same form in JSON, in the store and on the wire.

    `models` and `shadows`: `name`, the newest version that is ready, or `name/version`. Shadows are asked like models
    but never answered from.
    """

    name: str
    models: tuple[str, ...]
    slo_ms: float = 100.0
    """Of every request that brings no deadline of its own."""
    task: str = "classes"
    """`classes`: a model's prediction is a whole number, or the place of the largest score; `regression`: a number;
    `any`: outputs are passed on as they are, which only policies that ask one model can do."""
    output: str = ""
    """The output that holds the prediction; empty: a model's first."""
    policy: str = ""
    """Empty: `static` for one model, `exp4` for several."""
    settings: dict[str, float | dict[str, float]] = {}
    """Of the policy."""
    loss: str = ""
    """Empty: `zero_one` for classes, `absolute` for regression."""
    default: float | None = None
    """Answered where nothing better is known in time; None: the request fails."""
    confidence: float = 0.0
    """Predictions of less agreement than this are answered by the default."""
    shadows: tuple[str, ...] = ()
    cache: bool = True
    """Whether equal inputs may be answered from the prediction cache, for `cache_ttl_ns` of the selector."""
    contexts: int = 10_000
    """States kept, one for each context; beyond, the ones not used for longest are forgotten."""


def check_application(application: Application) -> None:
    """Raise `InvalidInput`, naming field, got and wanted, where the declaration contradicts itself."""
    check_name("name", application.name)
    if "/" in application.name:
        raise InvalidInput(f"name: got {application.name!r}, wanted no slash")
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
    known = (*application.models, *application.shadows)
    if not application.models or len(known) > MODELS_LIMIT:
        shown = f"{len(known)} names" if known else "[]"
        raise InvalidInput(f"models, shadows: got {shown}, wanted 1 to {MODELS_LIMIT}, each once")
    for field, texts in (("models", application.models), ("shadows", application.shadows)):
        for text in texts:
            check_name(field, text)
            name, slash, version = text.partition("/")
            if not name or "/" in version or (slash and not version):
                raise InvalidInput(f"{field}: got {text!r}, wanted name or name/version")
    if len(set(known)) != len(known):
        raise InvalidInput(f"models, shadows: got {list(known)}, wanted each once")


def _check_default(task: str, default: float) -> None:
    if task == "any":
        raise InvalidInput("default: an application of task 'any' cannot have one")
    if not isfinite(default):
        raise InvalidInput(f"default: got {default}, wanted a finite number")
    if task == "classes" and (default % 1 or abs(default) > EXACT):
        raise InvalidInput(f"default: got {default}, wanted a whole number up to {EXACT}, the task being classes")


def check_name(field: str, text: str) -> None:
    """Raise `InvalidInput` unless the text is fit to name something."""
    if not 0 < len(text) <= NAME_LIMIT or not text.isprintable() or text != text.strip():
        raise InvalidInput(f"{field}: got {text[:NAME_LIMIT]!r}, wanted 1 to {NAME_LIMIT} printable characters")


def undeclared_application(name: str) -> UnknownModel:
    """What to raise, or to answer, where there is no application of this name."""
    return UnknownModel(f"application: got {name!r}, which is not declared")
