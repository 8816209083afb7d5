"""`horologe experiment igniter-live` on real processes: a plan is applied, and every workload of it is served."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from horologe_cli.main import app


def test_the_workloads_of_two_gpus_are_served_on_their_shares() -> None:
    changes = ["gpus=2", "seconds=3", "warmup_s=1", "time_factor=40"]
    command = ["experiment", "igniter-live", "--quick", "--json", *(f"--set={change}" for change in changes)]
    result = CliRunner().invoke(app, command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    assert 2 <= len(found["rows"]) < 12
    for row in found["rows"]:
        assert row["requests"] > 0
        assert row["p50_ms"] > 0
    assert [bar["name"] for bar in found["bars"]] == ["GPUs of our plan, at most", "violations, at most"]
