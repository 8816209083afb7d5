"""The second form of a baseline: a queue for each application and length that the default scheduler knows.

A scheduler without distributions has one queue for each model, and one duration for each batch size. Here each *kind*
of a dynamic model's requests, an application and a range of lengths, becomes a model of its own. So the scheduler
batches only requests of one kind, and predicts each kind's own durations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from horologe_experiments.harness.kind_models import kind_model

if TYPE_CHECKING:
    from horologe_experiments.tournament.workload import Workload
    from horologe_sim.engine.virtual_worker import SimModel


def separate_kinds(workload: Workload) -> Workload:
    """Return the workload with a model for each kind of request. The groups of requests stay.

    Weights and LOAD times are divided among the kinds of a model. Devices hold the same part of all pages.
    """
    numbers: dict[tuple[int, int], int] = {}
    models: list[SimModel] = []
    chosen: list[int] = []
    for model, request in zip(workload.chunk.models, workload.chunk.requests, strict=True):
        sim = workload.models[model]
        distributions = workload.distributions.get(sim.report.spec.key)
        kind = -1 if distributions is None else distributions.kind_of(request.application, request.length)
        number = numbers.get((model, kind))
        if number is None:
            number = numbers[model, kind] = len(models)
            models.append(sim if distributions is None else kind_model(sim, distributions, kind))
        chosen.append(number)
    more = sum(model.report.spec.pages for model in models) / sum(model.report.spec.pages for model in workload.models)
    cluster = msgspec.structs.replace(workload.cluster, pages=math.ceil(max(1.0, more) * workload.cluster.pages))
    return workload._replace(models=models, chunk=workload.chunk._replace(models=chosen), cluster=cluster)
