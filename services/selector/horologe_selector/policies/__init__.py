"""Registry of the selection policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import InvalidInput
from horologe_selector.policies.epsilon_greedy import EpsilonGreedy
from horologe_selector.policies.equal_weights import Average, Majority
from horologe_selector.policies.exponential_weights import Exp3, Exp4
from horologe_selector.policies.static import Static
from horologe_selector.policies.thompson import Thompson

if TYPE_CHECKING:
    from horologe_common.applications import Application
    from horologe_selector.policy import Policy, PolicyFactory

POLICIES: dict[str, PolicyFactory] = {
    "exp3": Exp3,
    "exp4": Exp4,
    "static": Static,
    "epsilon_greedy": EpsilonGreedy,
    "thompson": Thompson,
    "majority": Majority,
    "average": Average,
}


def make_policy(application: Application) -> Policy:
    """Make the policy that an application declares; by default `static` for one model, `exp4` for several.

    Raises `InvalidInput` for an unknown policy, one that cannot do the application's task, or an invalid setting.
    """
    selects_one = len(application.models) == 1 or application.task == "any"
    name = application.policy or ("static" if selects_one else "exp4")
    if (factory := POLICIES.get(name)) is None:
        raise InvalidInput(f"policy: got {name!r}, wanted one of {', '.join(POLICIES)}")
    policy = factory(application.models, application.settings)
    if application.task == "any" and not policy.selects_one:
        raise InvalidInput(f"policy: got {name!r}, wanted a policy that selects one model, for task 'any'")
    return policy
