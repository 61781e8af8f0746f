"""Jobs of other training programs: a configuration of any of them becomes a scenario's values.

mappings      YAML, TOML, JSON or a launch line as one mapping from dotted keys to values
tools         what each program calls things: tables/*.yaml, each with its source
translation   a mapping in the words of a scenario
plan          replicas, batch and stages from what programs state instead
reading       files of a job, and those that they name, as one scenario
"""

from hybrid_des.interchange.jobs.reading import read_job
from hybrid_des.interchange.jobs.tools import TOOLS

__all__ = ["TOOLS", "read_job"]
