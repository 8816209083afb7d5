"""The policies by name, and how an application gets its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import InvalidInput
from horologe_selector.policies.average import Average
from horologe_selector.policies.epsilon_greedy import EpsilonGreedy
from horologe_selector.policies.exp3 import Exp3
from horologe_selector.policies.exp4 import Exp4
from horologe_selector.policies.majority import Majority
from horologe_selector.policies.static import Static
from horologe_selector.policies.thompson import Thompson

if TYPE_CHECKING:
    from horologe_common.applications import Application
    from horologe_selector.policy import Make, Policy

POLICIES: dict[str, Make] = {
    "exp3": Exp3,
    "exp4": Exp4,
    "static": Static,
    "epsilon_greedy": EpsilonGreedy,
    "thompson": Thompson,
    "majority": Majority,
    "average": Average,
}


def make_policy(application: Application) -> Policy:
    """The policy an application declares: empty is `static` for one model, `exp4` for several.

    Raises `InvalidInput` for one that does not exist, that cannot do the task, or a setting that is wrong.
    """
    one = len(application.models) == 1 or application.task == "any"
    name = application.policy or ("static" if one else "exp4")
    if (make := POLICIES.get(name)) is None:
        raise InvalidInput(f"policy: got {name!r}, wanted one of {', '.join(POLICIES)}")
    policy = make(application.models, application.settings)
    if application.task == "any" and not policy.single:
        raise InvalidInput(
            f"policy: got {name!r}, which combines predictions; task 'any' wants one that asks one model"
        )
    return policy
