"""Docstrings of structs and of their fields, read from the source: Python keeps no docstring of a field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, NamedTuple

import msgspec


class Field(NamedTuple):
    """A field of a struct. `default` is `msgspec.NODEFAULT` for a required field."""

    name: str
    type: str
    default: Any
    doc: str


def doc_of(kind: Any) -> str:
    """Return the docstring with its paragraphs, without the line breaks inside them."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of fields: the texts that follow fields in the class body."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        target: ast.expr | None = None
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        elif isinstance(statement, ast.Assign):
            target = statement.targets[0]
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[target.id] = " ".join(str(after.value.value).split())
    return docs


def fields_of(kind: type[msgspec.Struct]) -> list[Field]:
    """Return the fields of a struct in order, with their types as in the source."""
    docs: dict[str, str] = {}
    types: dict[str, str] = {}
    bases = [base for base in kind.__mro__ if issubclass(base, msgspec.Struct) and base is not msgspec.Struct]
    for base in reversed(bases):
        docs |= field_docs(base)
        types |= {name: str(value) for name, value in inspect.get_annotations(base).items()}
    fields = []
    for field in msgspec.structs.fields(kind):
        written = types[field.name].removeprefix("<class '").removesuffix("'>")  # a type, or text if postponed
        factory = field.default_factory
        default = field.default if factory is msgspec.NODEFAULT else factory()  # type: ignore[operator]
        fields.append(Field(field.name, written, default, docs.get(field.name, "")))
    return fields
