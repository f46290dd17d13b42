"""Division of a pilot's cost among its steps: every second of all its nodes is charged to a step. Pure."""

from __future__ import annotations


class CostSplitter:
    """Divides the cost of `num_nodes` nodes among steps, by a monotonic clock; debt is charged to the next step to
    start.

    Running steps share by their nodes, idle nodes included; without any, the next to start pays. So the shares of all
    steps add up to the time from construction to the end of the last one.
    """

    def __init__(self, num_nodes: int, now: float):
        self._num_nodes = num_nodes
        self._now = now
        self._debt = 0.0
        self._shares: dict[str, float] = {}
        self._sizes: dict[str, int] = {}

    def add_debt(self, node_s: float) -> None:
        """Charge `node_s` more to the next step to start."""
        self._debt += node_s

    def start(self, name: str, num_nodes: int, now: float) -> None:
        self._advance(now)
        self._shares[name], self._debt = self._debt, 0.0
        self._sizes[name] = num_nodes

    def end(self, name: str, now: float) -> float:
        """The step's share, in seconds times nodes."""
        self._advance(now)
        del self._sizes[name]
        return self._shares.pop(name)

    def settle(self, now: float) -> float:
        """Return the debt as the share of a step that could not be started, and clear it."""
        self._advance(now)
        debt, self._debt = self._debt, 0.0
        return debt

    def _advance(self, now: float) -> None:
        cost, self._now = self._num_nodes * (now - self._now), now
        busy = sum(self._sizes.values())
        for name, size in self._sizes.items():
            self._shares[name] += cost * size / busy
        if not busy:
            self._debt += cost
