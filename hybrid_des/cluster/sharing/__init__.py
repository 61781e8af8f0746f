"""How messages share links: by swappable models."""

from hybrid_des.cluster.sharing.registration import Flow, Put, Schedules, Sharing, find, names, sharing

__all__ = [
    "Flow", "Put", "Schedules", "Sharing", "find", "names", "sharing",
]  # fmt: skip
