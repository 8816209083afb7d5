"""Profiles and pipelines for examples: a V100 as measured by Clockwork, a K80 and a CPU derived from it.

V100: execution times of Clockwork (OSDI 2020), appendix A. Batch 32 continues the line from batch 8 to 16.

K80: the V100's times, scaled by one factor for all models. The factor makes ResNet-152 run 50.6 queries per second at
batch 32 (InferLine section 2.1).

CPU: 50.6 / 0.6 times slower than a K80 at batch 32, whatever the batch size (InferLine section 2.1: ResNet-152 at 0.6
queries per second). A batch of k rows takes k times as long as one row: a single core has no parallelism to gain.

`preprocess`, `alpr` and `language-id` are in neither paper. Their times are chosen, not measured: the first two cannot
use a GPU (InferLine Fig. 3 on `preprocess`), and the last runs on both (InferLine section 4.3).

The pipelines are the four of InferLine Fig. 2. Models of a similar size stand for those that have no profile:
`resnest101` for the translation, `xception` for the classifier of texts, `inceptionv3` for the object detector. The
paper states neither visits nor fan-out, so both are chosen here.
"""

from __future__ import annotations

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_planning.profiles import Profiles, StageProfile, collect_profiles

SIZES = (1, 2, 4, 8, 16, 32)
V100_MS: dict[str, tuple[float, ...]] = {
    "inceptionv3": (4.46, 6.85, 10.99, 16.45, 26.17),
    "mobile_pose_resnet50_v1": (3.29, 5.42, 9.00, 16.28, 29.92),
    "resnest101": (12.31, 16.23, 25.79, 44.65, 78.17),
    "resnet18_v2": (1.32, 1.81, 2.48, 4.42, 7.12),
    "resnet50_v2": (2.73, 4.05, 5.87, 9.93, 17.3),
    "resnet101_v2": (5.51, 8.05, 11.83, 18.14, 33.57),
    "resnet152_v2": (8.21, 11.66, 17.03, 27.60, 48.54),
    "xception": (4.49, 6.64, 10.46, 18.53, 34.55),
}
"""Times at batch 1, 2, 4, 8 and 16 in milliseconds (Clockwork appendix A)."""
CHOSEN_V100_MS = {"language-id": (1.0, 1.1, 1.3, 1.7, 2.5)}
CHOSEN_CPU_MS = {"preprocess": 4.0, "alpr": 20.0, "language-id": 5.0}
"""Time of one row."""
RESNET = "resnet152_v2"
RESNET_K80_RATE, RESNET_CPU_RATE = 50.6, 0.6
"""Queries per second of ResNet-152, on the K80 at batch 32 (InferLine section 2.1)."""


def v100_latency_ns(times_ms: tuple[float, ...]) -> dict[int, int]:
    """Return the times at `SIZES`, batch 32 on the line through batch 8 and 16."""
    per_row_ms = (times_ms[4] - times_ms[3]) / 8
    return {size: ms(time_ms) for size, time_ms in zip(SIZES, (*times_ms, times_ms[4] + 16 * per_row_ms), strict=True)}


def k80_factor() -> float:
    """Return the time of a batch on a K80 as a multiple of its time on a V100."""
    return 32e9 / RESNET_K80_RATE / v100_latency_ns(V100_MS[RESNET])[32]


def derive_k80(v100: StageProfile) -> StageProfile:
    """Return the profile on a K80 of a model profiled on a V100."""
    factor = k80_factor()
    return StageProfile(v100.model, "k80", {size: round(factor * ns) for size, ns in v100.latency_ns.items()})


def derive_cpu(k80: StageProfile) -> StageProfile:
    """Return the profile on a CPU of a model profiled on a K80."""
    return cpu_profile(k80.model, 1e9 / k80.throughput(32) * RESNET_K80_RATE / RESNET_CPU_RATE)


def cpu_profile(model: str, row_ns: float) -> StageProfile:
    """Return the profile on a CPU of a model that takes `row_ns` per row."""
    return StageProfile(model, "cpu", {size: round(size * row_ns) for size in SIZES})


def catalogue_profiles() -> Profiles:
    """Return the profiles of all models of the catalogue, on every hardware type that they can use."""
    profiles: list[StageProfile] = []
    for model, times_ms in {**V100_MS, **CHOSEN_V100_MS}.items():
        v100 = StageProfile(model, "v100", v100_latency_ns(times_ms))
        k80 = derive_k80(v100)
        profiles += [v100, k80, derive_cpu(k80)]
    profiles += [cpu_profile(model, ms(row_ms)) for model, row_ms in CHOSEN_CPU_MS.items()]
    return collect_profiles(profiles)


SLO_NS = ms(150)
"""SLO of InferLine Fig. 5, 6 and 13."""

IMAGE_PROCESSING = PipelineStructure(
    "image-processing",
    SLO_NS,
    (
        PipelineStage("preprocess", "preprocess", (), 1.0, 1.0),
        PipelineStage("classify", "resnet152_v2", ("preprocess",), 1.0, 1.0, ("resnet50_v2", "resnet101_v2")),
    ),
)
VIDEO_MONITORING = PipelineStructure(
    "video-monitoring",
    SLO_NS,
    (
        PipelineStage("detect", "inceptionv3", (), 1.0, 1.0),
        PipelineStage("vehicles", "resnet50_v2", ("detect",), 0.6, 1.5),
        PipelineStage("persons", "mobile_pose_resnet50_v1", ("detect",), 0.4, 1.5),
        PipelineStage("plates", "alpr", ("vehicles",), 0.5, 1.0),
    ),
)
SOCIAL_MEDIA = PipelineStructure(
    "social-media",
    SLO_NS,
    (
        PipelineStage("image", "resnet101_v2", (), 1.0, 1.0),
        PipelineStage("language", "language-id", (), 1.0, 1.0),
        PipelineStage("translate", "resnest101", ("language",), 0.4, 1.0),
        PipelineStage("categorise", "xception", ("image", "language", "translate"), 1.0, 1.0),
    ),
)
CASCADE = PipelineStructure(
    "cascade",
    SLO_NS,
    (
        PipelineStage("fast", "resnet18_v2", (), 1.0, 1.0),
        PipelineStage("slow", "resnet152_v2", ("fast",), 0.3, 1.0),
    ),
)
EXAMPLE_PIPELINES = {
    pipeline.name: pipeline for pipeline in (IMAGE_PROCESSING, VIDEO_MONITORING, SOCIAL_MEDIA, CASCADE)
}
