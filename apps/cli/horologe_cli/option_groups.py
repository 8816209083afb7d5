"""Groups of command-line options: NamedTuples whose fields are options of one or several commands."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable

KIND = inspect.Parameter.KEYWORD_ONLY


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with each parameter that is a NamedTuple replaced by one parameter per field.

    The fields are annotated as the parameters of a typer command: `Annotated[type, typer.Option(...)]`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hasattr(hint, "_fields")}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=KIND))

    def run(**values: Any) -> None:
        built = {name: group(*(values.pop(field) for field in group._fields)) for name, group in groups.items()}
        command(**built, **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010 # mypy knows no such attribute
    return run


def _parameters(group: Any) -> list[inspect.Parameter]:
    """Return a parameter for each field of a NamedTuple."""
    hints, defaults = get_type_hints(group, include_extras=True), group._field_defaults
    return [
        inspect.Parameter(field, KIND, default=defaults.get(field, inspect.Parameter.empty), annotation=hints[field])
        for field in group._fields
    ]
