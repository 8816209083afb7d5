"""What `horologe bench` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from horologe_cli.measuring.bench_run import BenchLoad, BenchResult, BenchRun
    from horologe_load.estimates import Estimate
    from horologe_load.model_server import ModelServer

COUNTS = ("late", "refused", "failed", "unanswered", "unsent")


def bench_document(result: BenchResult, server: ModelServer, load: BenchLoad, met: bool) -> dict[str, Any]:
    """Return the JSON document of a result. `met`: the exit code is 0."""
    described = {"endpoint": server.endpoint, "model": server.model, "load": describe_load(load), "met": met}
    run = result.run
    document: dict[str, Any] = {**described, **msgspec.to_builtins(result), "generator_limits": result.limits}
    if run:
        rates = {"attained": run.summary.attained, "throughput": run.summary.throughput, "goodput": run.summary.goodput}
        document["run"]["summary"] |= rates
    return document


def describe_load(load: BenchLoad) -> str:
    """Return the load in words."""
    slo = f", SLO {load.slo_ms:g} ms" if load.slo_ms else ""
    if load.arrivals:
        return f"open loop, a trace of {len(load.arrivals):,} requests in {load.arrivals[-1] / 1e9:,.1f} s{slo}"
    if load.clients:
        return f"closed loop, {load.clients} in flight for {load.seconds:g} s{slo}"
    kind = "constant" if load.even else "Poisson"
    rate = f"{load.rate:,g}/s" if load.rate else "capacity"
    return f"open loop, {rate}, {kind} arrivals, {load.seconds:g} s{slo}"


def bench_text(result: BenchResult, server: ModelServer, load: BenchLoad) -> str:
    """Return the result as text."""
    lines = [f"{server.model} at {server.endpoint}: {describe_load(load)}"]
    if result.trials:
        found = f"{result.capacity:,.1f} requests/s" if result.capacity else "none"
        failed = f", {result.failed:,.1f}/s is too much" if result.failed else ""
        lines.append(f"capacity        {found} with {load.wanted:.1%} in time{failed}; {len(result.trials)} trials")
    if result.run:
        lines += _run_lines(result.run)
    if result.limits:
        lines.append(f"The generator was the limit: {'; '.join(result.limits)}.")
        lines.append("The server may be better than these figures: use --processes, or another machine.")
    return "\n".join(lines)


def _run_lines(run: BenchRun) -> list[str]:
    summary = run.summary
    answered = f"{summary.throughput:,.1f}/s, {summary.in_time:,} of {summary.sent:,} requests in time"
    lines = [
        f"answered        {answered}",
        f"in time         {_row(run.attainment, '.2%')}",
        *(f"latency {name:7} {_row(estimate, '.2f')} ms" for name, estimate in run.latency_ms.items()),
    ]
    if counts := [f"{getattr(summary, name):,} {name}" for name in COUNTS if getattr(summary, name)]:
        lines.append(f"otherwise       {', '.join(counts)}")
    lines += [f"                {count:,} x {reason}" for reason, count in summary.reasons.items()]
    if summary.cached:
        lines.append(f"cached          {summary.cached:,} answers from the server's prediction cache")
    cpu = ", ".join(f"{share:.0%}" for share in run.cpu)
    lines.append(f"generator       {cpu} of a core, requests left {summary.delay_p99_ms:.2f} ms late (p99)")
    return lines


def _row(estimate: Estimate, kind: str) -> str:
    low, high = ("?" if bound is None else format(bound, kind) for bound in (estimate.low, estimate.high))
    return f"{estimate.value:{kind}}  ({low} to {high})"
