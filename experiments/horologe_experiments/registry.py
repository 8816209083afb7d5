"""Experiments by name."""

from horologe_experiments.clipper.bandits import Bandits
from horologe_experiments.clipper.ensembles import Ensembles
from horologe_experiments.clipper.feedback import Feedback
from horologe_experiments.clipper.personal import Personal
from horologe_experiments.clipper.replicas import Replicas
from horologe_experiments.clipper.stragglers import Stragglers
from horologe_experiments.clockwork.fig5 import Fig5
from horologe_experiments.clockwork.fig6 import Fig6
from horologe_experiments.clockwork.fig7 import Fig7
from horologe_experiments.clockwork.fig8 import Fig8
from horologe_experiments.clockwork.scale import Scale
from horologe_experiments.clockwork.window import Window
from horologe_experiments.harness.experiment import Experiment
from horologe_experiments.igniter.igniter_cpu import IgniterCpu
from horologe_experiments.igniter.igniter_error import IgniterError
from horologe_experiments.igniter.igniter_exact import IgniterExact
from horologe_experiments.igniter.igniter_joint import IgniterJoint
from horologe_experiments.igniter.igniter_live import IgniterLive
from horologe_experiments.igniter.igniter_plans import IgniterPlans
from horologe_experiments.igniter.igniter_run import IgniterRun
from horologe_experiments.igniter.igniter_shadow import IgniterShadow
from horologe_experiments.igniter.igniter_table1 import IgniterTable1
from horologe_experiments.igniter.igniter_time import IgniterTime
from horologe_experiments.inferline.inferline_cost import InferLineCost
from horologe_experiments.inferline.inferline_drop import InferLineDrop
from horologe_experiments.inferline.inferline_live import InferLineLive
from horologe_experiments.inferline.inferline_planner import InferLinePlanner
from horologe_experiments.inferline.inferline_pooled import InferLinePooled
from horologe_experiments.inferline.inferline_traces import InferLineTraces
from horologe_experiments.inferline.inferline_tuner import InferLineTuning
from horologe_experiments.live.batching import Batching
from horologe_experiments.live.dynamic import Dynamic
from horologe_experiments.live.fig9 import Fig9
from horologe_experiments.live.live import Live
from horologe_experiments.live.live_tournament import LiveTournament
from horologe_experiments.live.overhead import Overhead
from horologe_experiments.orloj.orloj_sensitivity import OrlojSensitivity
from horologe_experiments.orloj.orloj_tables import OrlojTables
from horologe_experiments.tournament.network_sweep import NetworkSweep
from horologe_experiments.tournament.tournament import Tournament

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Fig5(),
        Fig6(),
        Fig7(),
        Fig8(),
        Scale(),
        Window(),
        OrlojTables(),
        OrlojSensitivity(),
        Tournament(),
        NetworkSweep(),
        Bandits(),
        Ensembles(),
        Personal(),
        Replicas(),
        Feedback(),
        Stragglers(),
        InferLineCost(),
        InferLinePlanner(),
        InferLinePooled(),
        InferLineTuning(),
        InferLineTraces(),
        InferLineDrop(),
        IgniterJoint(),
        IgniterTable1(),
        IgniterPlans(),
        IgniterExact(),
        IgniterRun(),
        IgniterShadow(),
    )
}
"""Experiments that run in the simulator or in this process."""
LIVE_EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Fig9(),
        Live(),
        LiveTournament(),
        Dynamic(),
        Batching(),
        Overhead(),
        IgniterError(),
        IgniterTime(),
        InferLineLive(),
        IgniterLive(),
        IgniterCpu(),
    )
}
"""Experiments that start the services, measure this machine, or need data that the repository does not contain."""
ALL_EXPERIMENTS = {**EXPERIMENTS, **LIVE_EXPERIMENTS}
