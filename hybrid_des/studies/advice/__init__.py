"""Advice: the few changes of a scenario's settings that make its step shorter, or make it fit into memory."""

from hybrid_des.studies.advice.advising import advise

__all__ = ["advise"]
