"""Output formats: functions that write files into a folder and register their names."""

from hybrid_des.report.files.registration import find, names, output, write, write_unfinished
from hybrid_des.report.files.staging import Written, write_files, write_whole

__all__ = [
    "Written", "find", "names", "output", "write", "write_files", "write_unfinished", "write_whole",
]  # fmt: skip
