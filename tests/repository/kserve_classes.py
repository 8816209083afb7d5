"""Reads manifests as the classes of KServe's client, which KServe generates from its types. Run by `kserve-python`.

Arguments: files. Exits with an error that names the field if a class does not have it, if a required one is missing, or
if a value has another type.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import kserve
import yaml
from kubernetes import client

SCALARS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
LIST, DICT = re.compile(r"[lL]ist\[(.*)\]"), re.compile(r"[dD]ict[\[(]str, (.*)[\])]")


def read(value: Any, kind: str, place: str) -> Any:
    """Return the value as an object of `kind`, such as `V1Container` or `list[V1Container]`."""
    if match := LIST.fullmatch(kind):
        return [read(item, match[1], f"{place}[{number}]") for number, item in enumerate(value)]
    if match := DICT.fullmatch(kind):
        return {name: read(item, match[1], f"{place}.{name}") for name, item in value.items()}
    if kind not in SCALARS:
        return read_fields(value, getattr(kserve, kind, None) or getattr(client, kind), place)
    if not isinstance(value, SCALARS[kind]):
        sys.exit(f"{place}: got {value!r}, wanted {kind}")
    return value


def read_fields(value: dict[str, Any], made_from: Any, place: str) -> Any:
    attributes = {name: attribute for attribute, name in made_from.attribute_map.items()}
    fields = {}
    for name, item in value.items():
        if name not in attributes:
            sys.exit(f"{place}: {made_from.__name__} has no field {name}")
        fields[attributes[name]] = read(item, made_from.openapi_types[attributes[name]], f"{place}.{name}")
    try:
        return made_from(**fields)
    except ValueError as error:  # of a required field
        sys.exit(f"{place}: {error}")


for file in sys.argv[1:]:
    document = yaml.safe_load(Path(file).read_text())
    version = document["apiVersion"].rpartition("/")[2]
    read(document, version.capitalize() + document["kind"], document["kind"])
