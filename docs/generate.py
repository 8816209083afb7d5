"""Writes the reference pages that are made of the code: settings.md, metrics.md, wire.md.

    python docs/generate.py            # write them
    python docs/generate.py --check    # exit code 1, and which page, if one is stale

What the pages say is said in the code: docstrings of structs and of their fields. A setting without one is an error.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import itertools
import pkgutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_cli.local.topology import settings_sections
from horologe_common import models, wire
from horologe_common.service import settings
from horologe_common.service.metrics import METRICS, Metric
from horologe_common.status import Status
from horologe_common.wire import frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->\n"
TYPES = {"int": "number", "float": "number", "str": "text", "bool": "true or false", "tuple[str, ...]": "list of texts"}

LITERAL = "typing.Literal["


class Undocumented(Exception):
    """Something that a page must tell has no docstring."""


class Field(NamedTuple):
    """A field of a struct. `default` is `msgspec.NODEFAULT` where it must be given."""

    name: str
    type: str
    default: Any
    doc: str


def settings_page() -> str:
    """Every table a settings file may have, field by field."""
    parts = [SETTINGS_HEAD]
    for section, kind in settings_sections().items():
        parts.append(f"## [{section}]\n" + (f"\n{doc_of(kind)}\n" if kind.__doc__ else ""))
        rows = [
            (f"`{one.name}`", _kind(one), f"`{_default(one)}`", _documented(f"{section}.{one.name}", one.doc))
            for one in fields_of(kind)
        ]
        parts.append(_table(("field", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def metrics_page() -> str:
    """Every metric, with the names that Prometheus sees."""
    shared = {name: metric for name, metric in METRICS.items() if name.startswith("nv_")}
    own = {name: metric for name, metric in METRICS.items() if name not in shared}
    return "\n".join(
        [
            METRICS_HEAD,
            "## As other servers name them\n",
            _metrics_table(shared),
            "## Of Horologe alone\n",
            _metrics_table(own),
        ]
    )


def wire_page() -> str:
    """Every message with its tag, fields and docstrings; what they hold; the packet around them."""
    parts = [WIRE_HEAD, _packets(), "## Messages\n"]
    heading = ""
    for title, kind in _messages():
        if title != heading:
            heading = title
            parts.append(f"### {title}\n")
        parts.append(_message(kind))
    parts.append("## What describes a model\n")
    parts.extend(_message(kind) for kind in (models.TensorSpec, models.ModelSpec, models.Profile))
    parts.append("## Status\n\n" + doc_of(Status) + "\n")
    docs = field_docs(Status)
    rows = [(str(int(one)), f"`{one.name}`", docs.get(one.name, "")) for one in Status]
    parts.append(_table(("number", "name", ""), rows))
    return "\n".join(parts)


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page, "wire.md": wire_page}


def doc_of(kind: Any) -> str:
    """Its own docstring, paragraphs kept, without the line breaks inside them."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def field_docs(kind: type) -> dict[str, str]:
    """Attribute docstrings: the text that follows a field in the class body."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0] if isinstance(statement.targets[0], ast.Name) else None
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[target.id] = " ".join(str(after.value.value).split())
    return docs


def fields_of(kind: type[msgspec.Struct]) -> list[Field]:
    """The fields of a struct in order, with their types as written."""
    docs: dict[str, str] = {}
    types: dict[str, str] = {}
    for base in reversed(
        [one for one in kind.__mro__ if issubclass(one, msgspec.Struct) and one is not msgspec.Struct]
    ):
        docs |= field_docs(base)
        types |= {name: str(value) for name, value in inspect.get_annotations(base).items()}
    return [
        Field(one.name, _plain(types[one.name]), _default_of(one), docs.get(one.name, ""))
        for one in msgspec.structs.fields(kind)
    ]


def _plain(written: str) -> str:
    """`<class 'int'>` -> `int`; what a module with postponed annotations has is text already."""
    return written.removeprefix("<class '").removesuffix("'>")


def _default_of(one: Any) -> Any:
    if one.default_factory is not msgspec.NODEFAULT:
        return one.default_factory()
    return one.default


def _documented(where: str, doc: str) -> str:
    if not doc:
        raise Undocumented(f"setting {where}: got no docstring behind the field, wanted one")
    return doc


def _kind(one: Field) -> str:
    if one.name.endswith("_ns"):
        return "duration"
    if one.name.endswith("_bytes"):
        return "size"
    if one.type.startswith(LITERAL):
        return one.type.removeprefix(LITERAL).rstrip("]").replace("', '", "' or '").replace("'", "`")
    return TYPES[one.type]


def _default(one: Field) -> str:
    """As a person would write it in a settings file."""
    if one.name.endswith("_ns"):
        return quantity(one.default, settings.DURATIONS)
    if one.name.endswith("_bytes"):
        return quantity(one.default, settings.SIZES)
    return bytes(msgspec.json.encode(one.default)).decode()


def quantity(value: int, units: Mapping[str, int]) -> str:
    """`50_000_000` -> `50ms`: the largest unit that leaves a whole number."""
    if value == 0:
        return "0"
    unit = max((size, name) for name, size in units.items() if value % size == 0)[1]
    return f"{value // units[unit]}{unit}"


def _metrics_table(metrics: Mapping[str, Metric]) -> str:
    rows = [(f"`{name}`", metric.kind, ", ".join(metric.labels), metric.help) for name, metric in metrics.items()]
    return _table(("name", "kind", "labels", "meaning"), rows)


def _messages() -> list[tuple[str, type[msgspec.Struct]]]:
    """The structs of `wire` as they are written, each with the title of its file; files in the order of their tags."""
    found = []
    for link in pkgutil.iter_modules(wire.__path__, f"{wire.__name__}."):
        module = importlib.import_module(link.name)
        title = (module.__doc__ or "").strip().removesuffix(".")
        classes = [node.name for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]
        found.append([(title, getattr(wire, name)) for name in classes if name != "Message"])
    return list(itertools.chain.from_iterable(sorted(found, key=_least_tag)))


def _least_tag(messages: list[tuple[str, type[msgspec.Struct]]]) -> int:
    tags = (kind.__struct_config__.tag for _, kind in messages)
    return min((tag for tag in tags if isinstance(tag, int)), default=0)


def _message(kind: type[msgspec.Struct]) -> str:
    tag = kind.__struct_config__.tag
    tagged = tag if isinstance(tag, int) else None
    heading = f"#### {kind.__name__}" + (f" (tag {tagged})" if tagged is not None else "")
    fields = fields_of(kind)
    head = [] if tagged is None else [str(tagged)]
    layout = f"`[{', '.join([*head, *(one.name for one in fields)])}]`"
    parts = [heading + "\n", *([doc_of(kind) + "\n"] if kind.__doc__ else []), layout + "\n"]
    rows = [(f"`{one.name}`", f"`{one.type}`", _wire_default(one), one.doc) for one in fields]
    return "\n".join([*parts, _table(("field", "type", "default", ""), rows)])


def _wire_default(one: Field) -> str:
    """Empty where the field must be there."""
    if one.default is msgspec.NODEFAULT:
        return ""
    return "`b''`" if isinstance(one.default, bytes) else f"`{msgspec.json.encode(one.default).decode()}`"


def _packets() -> str:
    """The packet format, from the docstrings of the modules that make it, and one packet byte by byte."""
    predict = wire.Predict(7, "adder", "", 50_000_000, (wire.Tensor("x", "FP32", (1, 2), 8),))
    header = wire.encode([wire.Envelope("", "", [predict])])
    return PACKETS.format(
        wire="\n".join(inspect.cleandoc(wire.__doc__ or "").splitlines()[2:]),
        frames="\n".join(inspect.cleandoc(frames.__doc__ or "").splitlines()[2:]),
        protocol=wire.PROTOCOL,
        header_limit=quantity(wire.HEADER_LIMIT, settings.SIZES),
        peer_limit=quantity(wire.PEER_HEADER_LIMIT, settings.SIZES),
        glue=quantity(frames.GLUE_BELOW, settings.SIZES),
        datatypes=", ".join(f"`{name}`" for name in (*models.DTYPES, "BYTES")),
        value=msgspec.json.encode(msgspec.msgpack.decode(header)).decode(),
        hex=textwrap.fill(header.hex(" "), 95, subsequent_indent=" " * 8),
    )


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


SETTINGS_HEAD = f"""# Settings

{NOTICE}
Each service reads the tables that concern it, in this order, the later winning: the TOML file given by `--config` (or
`HOROLOGE_CONFIG`), environment variables `HOROLOGE_SECTION_FIELD`, and `--set section.field=value`. Durations are
written with a unit ({", ".join(settings.DURATIONS)}), as are sizes ({", ".join(settings.SIZES)}). On the command line
and in the environment a list is separated by commas. A name that does not exist is an error that lists those that do.

```toml
[frontend]
grace_ns = "50ms"

[controller]
scheduler = "edf"
```

```
horologe up --config horologe.toml --set log.level=debug
HOROLOGE_CONTROLLER_SCHEDULER=edf horologe-controller
```

`horologe up` decides `links.bind`, `links.connect` and `links.advertise` itself, and spreads `metrics.bind` over its
processes.
"""

METRICS_HEAD = f"""# Metrics

{NOTICE}
Every process serves its part of these at `/metrics` (`metrics.bind`, see [settings](settings.md)): counts of requests
come from the frontend, of the cache from the selector, of batches and predictions from the controller, start errors and
free pages from the workers. Durations of histograms are in seconds, counters that end in `_us` in microseconds. The
names are the ones scraped. `cumulative` are counters under Triton's names, which lack `_total`.
"""

WIRE_HEAD = f"""# The wire

{NOTICE}
What goes over the sockets: messages in MessagePack, tensors as raw bytes beside them. The
[journey of a request](request-path.md) shows them in use. Clients need Hello, Welcome, Rejected and the first group.
"""

PACKETS = """## Packets

{wire}

{frames}

- The protocol version is {protocol}. Whoever connects says Hello first, and again after every reconnect; the answer is
  Welcome, or Rejected with status PROTOCOL where the versions differ. What was under way on a connection that broke is
  lost: to both ends the other one has gone, and has come anew.
- A client sends and gets envelopes whose `to` and `sender` are empty.
- A tensor's bytes are little-endian and row-major. BYTES is each string behind its length (four bytes, little-endian);
  any other tensor has exactly the bytes that its shape says. The datatypes:
  {datatypes}.
- The body is one frame when all tensors of the packet together have at most {glue}, else a frame for each tensor.
- A header is at most {header_limit} long from a client and {peer_limit} between services; longer ones are rejected
  undecoded.

One request on one tensor of shape `[1, 2]`, as the two frames of its packet:

```
frame 0 {hex}
      = {value}
frame 1 00 00 80 3f 00 00 00 40
      = 1.0, 2.0
```
"""


def main(arguments: list[str] | None = None) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        try:
            text = page().rstrip("\n") + "\n"
        except Undocumented as error:
            sys.stderr.write(f"docs/{name}: {error}\n")
            return 1
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stderr.write(f"docs/{name}: {'stale: run `make docs`' if check else 'written'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
