"""The four pipelines of InferLine Fig. 2, over models of the catalogue.

The figure names models that the catalogue does not have. Models of a similar size stand for them: `resnest101` for the
translation, `xception` for the classifier of texts, `inceptionv3` for the object detector. The paper states neither
visits nor fan-out, so both are chosen here.
"""

from __future__ import annotations

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure

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
