"""The audit log: one line in the log for each call that changes models, applications or plans."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_common.status import HorologeError, Status
from horologe_frontend.core.management import ManagementCall
from horologe_frontend.http.http_messages import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_MAX = 200
"""Characters of a target or version. A client may send names of any length."""
AUDIT = "audit"
log = logger(AUDIT)
logging.getLogger(f"horologe.{AUDIT}").setLevel(logging.INFO)  # written at every `log.level`


def write_call(call: ManagementCall) -> None:
    """Write the line of a call. The log adds the time."""
    log.info(
        "management",
        client=call.client,
        door=call.door,
        call=call.call,
        target=_on_one_line(call.target),
        version=_on_one_line(call.version),
        weight=call.weight,
        outcome=call.outcome,
    )


@contextmanager
def audited(client: str, door: str, call: str, target: str) -> Iterator[ManagementCall]:
    """Write the line of the call at the end of the block, with the status of the exception that ends it.

    The block may store what it learns about the call.
    """
    entry = ManagementCall(client, door, call, target)
    entry.outcome = Status.CANCELLED.name  # by a BaseException: the client has closed its connection
    try:
        yield entry
        entry.outcome = Status.OK.name
    except HorologeError as error:
        entry.outcome = error.status.name
        raise
    except HttpError as error:
        entry.outcome = HTTPStatus(error.status).name
        raise
    except Exception:
        entry.outcome = HTTPStatus.INTERNAL_SERVER_ERROR.name
        raise
    finally:
        write_call(entry)


def _on_one_line(name: str) -> str:
    """Escape a name of a client: a line break would begin another line of the log."""
    return name[:NAME_MAX].encode("unicode_escape").decode()
