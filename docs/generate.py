"""Writes the reference pages that are generated from the code: those of `PAGES`.

    python docs/generate.py            # write the pages
    python docs/generate.py --check    # exit code 1, and the name of each page that is stale

The texts are the docstrings of structs and fields, and the help texts of metrics. A setting without a docstring is an
error.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from horologe_cli.local.topology import settings_sections
from horologe_common import models, setting_ranges, wire
from horologe_common.metrics.metric_definitions import METRICS, Metric
from horologe_common.service import settings
from horologe_common.status import Status
from horologe_common.wire import frames
from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters
from horologe_controller.schedulers import SCHEDULERS
from horologe_frontend.oip.openapi import openapi_document
from horologe_sim.report.tables import Table
from setting_questions import QUESTIONS
from struct_docs import Field, doc_of, field_docs, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->\n"
TYPES = {"int": "number", "float": "number", "str": "text", "bool": "true or false", "tuple[str, ...]": "list of texts"}
LITERAL = "Literal["
SETTING_COLUMNS = ("setting", "type", "default", "range", "meaning")
POLICY_TABLE = "policy"
"""The field of `[controller]` that is a table. Its fields have a page of their own."""
UNBROKEN = "\0"
"""Stands for the spaces within a field, where a line of the array may not break."""
ANNOTATED = re.compile(r"^(?:typing\.)?Annotated\[(\w+), .*\]$")


class Undocumented(Exception):
    """A setting has no docstring or answers no question."""


def settings_page() -> str:
    """Return the page of all settings, by the question that they answer."""
    rows = {
        f"{section}.{field.name}": _settings_row(f"{section}.{field.name}", kind, field)
        for section, kind in settings_sections().items()
        for field in fields_of(kind)
        if field.name != POLICY_TABLE
    }
    parts = [SETTINGS_HEAD]
    for question, names in QUESTIONS.items():
        parts += [f"## {question}\n", _table(SETTING_COLUMNS, [rows.pop(name) for name in names.split()])]
    if rows:
        raise Undocumented(f"settings {', '.join(rows)}: got no question in docs/setting_questions.py, wanted one")
    return "\n".join(parts)


def parameters_page() -> str:
    """Return the page of the parameters that the scheduling policies declare."""
    shared = {field.name for field in fields_of(PolicyParameters)}
    parts = [PARAMETERS_HEAD]
    for name, kind in [("", PolicyParameters), *((name, policy.Parameters) for name, policy in SCHEDULERS.items())]:
        fields = [field for field in fields_of(kind) if not name or field.name not in shared]
        if fields:
            rows = [_settings_row(field.name, kind, field) for field in fields]
            parts += [f"## {name or 'Of every policy'}\n", _table(("parameter", *SETTING_COLUMNS[1:]), rows)]
    return "\n".join(parts)


def _settings_row(name: str, kind: type[msgspec.Struct], field: Field) -> tuple[str, ...]:
    """Return the cells of a setting. Raises Undocumented without a docstring."""
    if not field.doc:
        raise Undocumented(f"setting {name}: got no docstring below the field, wanted one")
    return f"`{name}`", _type_name(field), f"`{_settings_default(field)}`", _range_text(kind, field.name), field.doc


def metrics_page() -> str:
    """Return the page of all metrics, with their names in Prometheus."""
    shared = {name: metric for name, metric in METRICS.items() if name.startswith("nv_")}
    own = {name: metric for name, metric in METRICS.items() if name not in shared}
    parts = ["## Names shared with Triton\n", _metrics_table(shared), "## Names of Horologe\n", _metrics_table(own)]
    return "\n".join([METRICS_HEAD, *parts])


def wire_page() -> str:
    """Return the page of the packet format, all messages and all statuses."""
    parts = [WIRE_HEAD, _packets(), WIRE_CLIENT, "## Messages of clients\n"]
    modules = _messages_by_module()
    for title, kinds in modules:
        if _is_for_clients(title):
            parts += [f"### {title}\n", *map(_message, kinds)]
    parts.append(BETWEEN_SERVICES)
    rows = [(title, _tagged_names(kinds)) for title, kinds in modules if not _is_for_clients(title)]
    parts.append(_table(("link", "messages, with their tags"), rows))
    parts.append("## Model descriptions\n")
    parts += map(_message, (models.TensorSpec, models.ModelSpec, models.Profile))
    docs = field_docs(Status)
    rows = [(str(int(status)), f"`{status.name}`", docs.get(status.name, "")) for status in Status]
    parts += ["## Status\n\n" + doc_of(Status) + "\n", _table(("number", "name", ""), rows)]
    return "\n".join(parts)


def openapi_page() -> str:
    """Return the OpenAPI document of the HTTP API, indented."""
    return msgspec.json.format(openapi_document(), indent=1).decode()


PAGES = {
    "openapi.json": openapi_page,
    "settings.md": settings_page,
    "scheduler-parameters.md": parameters_page,
    "metrics.md": metrics_page,
    "wire.md": wire_page,
}


def _type_name(field: Field) -> str:
    if field.name.endswith("_ns"):
        return "duration"
    if field.name.endswith("_bytes"):
        return "size"
    kind = ANNOTATED.sub(r"\1", field.type).removeprefix("typing.")
    if kind.startswith(LITERAL):
        return kind.removeprefix(LITERAL).rstrip("]").replace(", ", " or ").replace("'", "`").replace('"', "`")
    return TYPES[kind]


def _range_text(kind: type[msgspec.Struct], name: str) -> str:
    """Return the range of a number, empty for other settings."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    limits = setting_ranges.range_of(name, types[name])
    return setting_ranges.describe_range(name, limits) if limits else ""


def _settings_default(field: Field) -> str:
    """Return the default as it is written in a settings file."""
    if field.name.endswith("_ns"):
        return quantity(field.default, settings.DURATIONS)
    if field.name.endswith("_bytes"):
        return quantity(field.default, settings.SIZES)
    return bytes(msgspec.json.encode(field.default)).decode()


def quantity(value: int, units: Mapping[str, int]) -> str:
    """Convert `50_000_000` to `50ms`, with the largest unit that leaves a whole number."""
    if value == 0:
        return "0"
    unit = max((size, name) for name, size in units.items() if value % size == 0)[1]
    return f"{value // units[unit]}{unit}"


def _metrics_table(metrics: Mapping[str, Metric]) -> str:
    rows = []
    for name, metric in metrics.items():
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        rows.append((f"`{name}{labels}`", metric.kind, metric.help))
    return _table(("name, with its labels", "kind", "meaning"), rows)


def _messages_by_module() -> list[tuple[str, list[type[msgspec.Struct]]]]:
    """Return title and structs of each module of `wire`, in order of their lowest tags."""
    groups = []
    for info in pkgutil.iter_modules(wire.__path__, f"{wire.__name__}."):
        module = importlib.import_module(info.name)
        title = (module.__doc__ or "").strip().partition("\n")[0].removesuffix(".")
        names = [node.name for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]
        if kinds := [getattr(wire, name) for name in names if name != "Message"]:
            groups.append((title, kinds))
    return sorted(
        groups, key=lambda group: min((tag for kind in group[1] if (tag := _tag(kind)) is not None), default=0)
    )


def _is_for_clients(title: str) -> bool:
    """Return whether clients send or get the messages of the module with this title."""
    return title.startswith(("Client ", "Every connection"))


def _tagged_names(kinds: Iterable[type[msgspec.Struct]]) -> str:
    return ", ".join(f"{kind.__name__} {tag}" for kind in kinds if (tag := _tag(kind)) is not None)


def _tag(kind: type[msgspec.Struct]) -> int | None:
    tag = kind.__struct_config__.tag
    return tag if isinstance(tag, int) else None


def _message(kind: type[msgspec.Struct]) -> str:
    tag, fields = _tag(kind), fields_of(kind)
    heading = f"#### {kind.__name__}" + (f" (tag {tag})" if tag is not None else "")
    items = [*([str(tag)] if tag is not None else []), *map(_wire_field, fields)]
    unbroken = ", ".join(item.replace(" ", UNBROKEN) for item in items)
    array = textwrap.fill(f"[{unbroken}]", 110, subsequent_indent=" ").replace(UNBROKEN, " ")
    parts = [heading + "\n", *([doc_of(kind) + "\n"] if kind.__doc__ else []), f"```text\n{array}\n```\n"]
    docs = "".join(f"- `{field.name}`: {field.doc}\n" for field in fields if field.doc)
    return "\n".join([*parts, *([docs] if docs else [])])


def _wire_field(field: Field) -> str:
    """Return name and type of a field. A field that may be left out has `?`, and its default unless that is empty."""
    if field.default is msgspec.NODEFAULT:
        return f"{field.name}: {field.type}"
    default = f" = {msgspec.json.encode(field.default).decode()}" if field.default else ""
    return f"{field.name}?: {field.type}{default}"


def _packets() -> str:
    """Return the packet format, from the docstrings of its modules, and the bytes of an example packet."""
    predict = wire.Predict(7, "adder", "", 50_000_000, (wire.Tensor("x", "FP32", (1, 2), 8),))
    header = wire.encode([wire.Envelope("", "", [predict])])
    return PACKETS.format(
        wire="\n".join(inspect.cleandoc(wire.__doc__ or "").splitlines()[2:]),
        protocol=wire.PROTOCOL,
        header_limit=quantity(wire.HEADER_LIMIT, settings.SIZES),
        peer_limit=quantity(wire.PEER_HEADER_LIMIT, settings.SIZES),
        glue=quantity(frames.GLUE_BELOW, settings.SIZES),
        datatypes=", ".join(f"`{name}`" for name in (*models.DTYPES, "BYTES")),
        value=msgspec.json.encode(msgspec.msgpack.decode(header)).decode(),
        hex=textwrap.fill(header.hex(" "), 95, subsequent_indent=" " * 8),
    )


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    table = Table(columns, left=len(columns))
    for row in rows:
        table.add_row(*row)
    return table.markdown() + "\n"


SETTINGS_HEAD = f"""# Settings

{NOTICE}
Each service reads its settings from three sources. Later sources override earlier ones:

1. the TOML file given by `--config` or `HOROLOGE_CONFIG`;
2. environment variables `HOROLOGE_SECTION_FIELD`;
3. `--set section.field=value`.

The tables below name a setting `section.field`, as `--set` does. Durations have a unit
({", ".join(settings.DURATIONS)}), and so have sizes ({", ".join(settings.SIZES)}). On the command line and in the
environment, the items of a list are separated by commas. An unknown section of a file or of `--set`, an unknown field
and a value outside its range are errors: the service ends with status 2, and names the setting, the value and what was
wanted. Other variables that begin with `HOROLOGE_` are not settings.

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

`horologe up` sets `links.bind`, `links.connect` and `links.advertise` itself. Its first process gets `metrics.bind`,
the others get other ports. The table `[controller.policy]` has parameters of the scheduling policy, such as
`controller.policy.advance`: see [scheduler parameters](scheduler-parameters.md).
"""

PARAMETERS_HEAD = f"""# Scheduler parameters

{NOTICE}
The table `[controller.policy]` has the parameters of the [scheduling policy](scheduling.md) that `controller.scheduler`
names. The policy declares them. One that it does not have is an error, as for other [settings](settings.md). The
default needs none of them: they repeat published variants of the baselines.

```toml
[controller]
scheduler = "clipper"

[controller.policy]
delay_ns = "2ms"
```

```
HOROLOGE_CONTROLLER_POLICY_DELAY_NS=2ms horologe-controller --set controller.scheduler=clipper
```
"""

METRICS_HEAD = f"""# Metrics

{NOTICE}
Every process serves its metrics at `/metrics` (`metrics.bind`). Histograms of durations are in seconds, counters that
end in `_us` in microseconds. Kind `untyped`: Triton's name does not follow Prometheus' conventions. Names that end in
`_us` have a page of their own, `/metrics/triton`. [Observing](observing.md) has the PromQL for each question.
"""

WIRE_HEAD = f"""# Wire format

{NOTICE}
Sockets carry messages in MessagePack, followed by tensors as raw bytes. [The path of a request](request-path.md)
shows them in use. Clients need Hello, Welcome, Rejected and the messages between client and frontend.

A message is an array of its tag and its fields. Fields with `?` may be missing at the end. They are then 0, false or
empty, or have the value that is shown.
"""

WIRE_CLIENT = """## A client

A client is a DEALER socket of ZeroMQ, on port 8003 of a frontend. This one needs `pip install pyzmq msgpack`, and
`horologe up --demo`:

```python
import struct

import msgpack
import zmq

socket = zmq.Context().socket(zmq.DEALER)
socket.connect("tcp://127.0.0.1:8003")


def send(message, *tensors):
    socket.send_multipart([msgpack.packb([["", "", [message]]]), *tensors])


def receive():
    header, *tensors = socket.recv_multipart()
    ((_, _, messages),) = msgpack.unpackb(header)
    return messages, tensors


send([10, 1, []])  # Hello
print(receive())  # Welcome
send([1, 7, "noop", "", 100_000_000, [["x", "FP32", [1, 16], 64]]], struct.pack("<16f", *range(16)))  # Predict
print(receive())  # Answer
```

The client chooses the `id` of a request, here 7, and its answer has the same one. [Status](#status) lists the numbers
of `status`. If the server has [keys](operating.md#keys), set the key pair of the client and the public key of the
service on the socket (CURVE).
"""

BETWEEN_SERVICES = """## Messages between services

Fields and their docstrings: [`horologe_common/wire/`](../libs/common/horologe_common/wire/), a module for each link.
"""

PACKETS = """## Packets

{wire}

- The protocol version is {protocol}. A process that connects sends Hello first, and again after every reconnect. The
  answer is Welcome, or Rejected with status PROTOCOL if the versions differ. Packets in flight on a broken connection
  are lost. Both ends treat a new connection as a new peer.
- A packet without messages is a heartbeat. Services send one to each other four times per `links.silence_ns`. A link on
  which none arrives for that time is lost. Between services, Rejected also ends the link: the status is REFUSED if
  another process uses the name, LOST if no heartbeat arrived. Clients send no heartbeats but those of ZeroMQ.
- In envelopes from and to clients, `to` and `sender` are empty.
- Tensors are little-endian and row-major. In a BYTES tensor, each string follows its length (four bytes,
  little-endian), and text is UTF-8. Any other tensor has exactly the bytes of its shape. Datatypes: {datatypes}.
- The body is one frame if all tensors of the packet together have at most {glue}, else one frame for each tensor. The
  sizes in the header say which.
- The maximum length of a header is {header_limit} from a client and {peer_limit} between services. Longer headers are
  rejected without decoding.

The two frames of a packet with a request, with one tensor of shape `[1, 2]`:

```
frame 0 {hex}
      = {value}
frame 1 00 00 80 3f 00 00 00 40
      = 1.0, 2.0
```
"""


def main(arguments: list[str] | None = None, folder: Path = DOCS) -> int:
    """Write or check the pages in `folder`. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for name, page in PAGES.items():
        path = folder / name
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
