"""Advice: the few changes of a scenario's settings that make its step shorter, or make it fit into memory.

advice = advise("scenarios/llama3.1-70b_128.yaml")
advice.lines[0].change          # in words; .settings, .step_s, .gain, .flags …
applied("scenarios/llama3.1-70b_128.yaml", advice.lines[0])    # the file with it

words             what changes, as people say it           neighbours
neighbourhood     plans one and two moves away, priced     evaluation
choice            the few that are shown                   catches
"""

from hybrid_des.studies.advice.advising import advise
from hybrid_des.studies.advice.applied import applied
from hybrid_des.studies.advice.explaining import explain

__all__ = ["advise", "applied", "explain"]
