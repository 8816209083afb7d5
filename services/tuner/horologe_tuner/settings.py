"""Settings of the tuner: the table `[tuner]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from horologe_common.clock import s


class TunerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plans of pipelines and shares: scaler, limits and intervals."""

    state: str = ".cache/horologe"
    """Folder of the state file: the applied plans and their replicas. Empty: plans are lost at a restart."""
    dry_run: bool = False
    """Only report decisions: nothing is sent to the controller, and no worker is started or stopped."""
    scaler: Literal["none", "process", "docker", "swarm", "kubernetes"] = "none"
    """Program that starts and stops workers. process: `horologe up`. docker: containers of a compose project. swarm:
    the replicas of services. kubernetes: the scale of deployments. none: an operator. The tuner then only assigns
    models to the devices that exist."""
    scaler_target: str = ""
    """process: the control socket of `horologe up`, which sets it. docker: the compose project. swarm: the stack, whose
    name prefixes services. kubernetes: the namespace."""
    scaler_names: tuple[str, ...] = ("*=gpu-worker",)
    """Compose service, Swarm service or Deployment of each hardware type, as `v100=gpu-worker-v100`. `*` stands for any
    other type, and in the name for the type: `*=gpu-worker-*`."""
    max_workers: int = 64
    """Limit of workers of one hardware type. Decisions beyond it are cut to it."""
    demand: Literal["paper", "relative"] = "paper"
    """Rate to scale up to. paper: the highest rate of any window that exceeds the sample's (InferLine). relative: the
    planned rate, times the largest ratio to the sample's rate in the same window."""
    headroom: Annotated[float, Meta(ge=1, le=100)] = 1.25
    """Plans with levels: multiple of the present traffic that the replicas carry, at least 1. With 1, a rise of the
    traffic finds no spare replicas in the seconds until new ones work."""
    settle_ns: Annotated[int, Meta(ge=0)] = s(15)
    """Time after a change, and with levels after the demand that needed them, before replicas are removed: three times
    the activation time of a replica."""
    shadow_percent: Annotated[float, Meta(ge=0, le=100)] = 10.0
    """Percent of a device that the standby worker of a share has more than the share, if as much is left (iGniter
    section 4.2). 0: no standby workers."""
