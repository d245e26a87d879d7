"""What a search minimises, and how long a step of given devices may take to be better than the best so far.

An objective is a weight of the devices times the seconds of a step: 1, their number, or their price. `gpus` counts the
devices alone, and of equal numbers takes the shortest step. Takes a request; knows no roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nextafter

from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.price import SECONDS_PER_HOUR
from flowrl.placement.request import GPU_SECONDS, GPUS, PRICE, PlacementRequest

Score = tuple[float, float, int]
"""Value of the objective, seconds of a step, devices: the smaller the better, in this order."""
WORST: Score = (inf, inf, 1 << 60)


@dataclass(frozen=True, slots=True)
class Objective:
    """Of one request on one cluster."""

    name: str
    prices: Mapping[str, float]
    """Of a device of each group for a second; 1 where the objective is not money."""
    at_most: float = inf
    """Seconds that a step may take."""

    def score(self, seconds: float, pools: Sequence[tuple[str, int]]) -> Score:
        """Of a placement on pools of (group, devices)."""
        devices = sum(count for _, count in pools)
        weight = self.weight(pools)
        return (weight if self.name == GPUS else weight * seconds), seconds, devices

    def weight(self, pools: Sequence[tuple[str, int]]) -> float:
        """What its devices count."""
        if self.name == GPUS:
            return float(sum(count for _, count in pools))
        if self.name in (GPU_SECONDS, PRICE):
            return sum(self.prices[group] * count for group, count in pools)
        return 1.0

    def most_seconds(self, pools: Sequence[tuple[str, int]], best: Score) -> float:
        """A step on these devices must be shorter than this to be better than `best`; 0: none can be. Fewer devices
        win where all else is equal."""
        weight, devices = self.weight(pools), sum(count for _, count in pools)
        allowed = nextafter(self.at_most, inf)
        if self.name == GPUS:
            if weight < best[0]:
                return allowed
            return min(allowed, best[1]) if weight == best[0] else 0.0
        limit = best[0] / weight if weight else inf
        return min(allowed, nextafter(limit, inf) if devices < best[2] else limit)

    def least(self, seconds: float, pools: Sequence[tuple[str, int]]) -> float:
        """The value where a step takes no less than `seconds` and devices are no fewer."""
        weight = self.weight(pools)
        return weight if self.name == GPUS else weight * seconds


def objective_of(request: PlacementRequest, cluster: Cluster) -> Objective:
    """As the flow asks; every price is there."""
    prices = {
        group.name: (group.price_per_gpu_hour or 0.0) / SECONDS_PER_HOUR if request.objective == PRICE else 1.0
        for group in cluster.groups
    }
    at_most = request.step_seconds_at_most
    return Objective(request.objective, prices, inf if at_most is None else at_most)
