"""Launch scripts that are run, not read: what they would have started, with its true arguments."""

from hybrid_des.interchange.launched.choice import launch_of, remarks
from hybrid_des.interchange.launched.jobs_of_others import job_of
from hybrid_des.interchange.launched.starts import GPUS, LIMIT_S, Outcome, Prepared, Start, prepared

__all__ = [
    "GPUS", "LIMIT_S", "Outcome", "Prepared", "Start", "job_of", "launch_of", "prepared", "remarks",
]  # fmt: skip
