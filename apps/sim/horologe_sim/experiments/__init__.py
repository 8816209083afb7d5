"""The experiments by name."""

from horologe_sim.experiment import Experiment
from horologe_sim.experiments.bandits import Bandits
from horologe_sim.experiments.ensembles import Ensembles
from horologe_sim.experiments.feedback import Feedback
from horologe_sim.experiments.fig5 import Fig5
from horologe_sim.experiments.fig6 import Fig6
from horologe_sim.experiments.fig7 import Fig7
from horologe_sim.experiments.fig8 import Fig8
from horologe_sim.experiments.orloj_sensitivity import OrlojSensitivity
from horologe_sim.experiments.orloj_tables import OrlojTables
from horologe_sim.experiments.personal import Personal
from horologe_sim.experiments.replicas import Replicas
from horologe_sim.experiments.scale import Scale
from horologe_sim.experiments.stragglers import Stragglers
from horologe_sim.experiments.window import Window

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        Fig5(), Fig6(), Fig7(), Fig8(), Scale(), Window(), OrlojTables(), OrlojSensitivity(), Bandits(), Ensembles(),
        Personal(), Replicas(), Feedback(), Stragglers(),
    )
}  # fmt: skip
