"""Logs of reinforcement learning: one log of a run becomes a scenario with an `rl` section.

read_loop([path], "verl")     # values, and which number came from which line

log_lines      lines as they were printed
settings       the configuration that a run prints at its start, each value with its line
steps          numbers of each step, and their means over the steady ones
spread         sigma of lengths from their mean and what else a log has
framework      what is known of a framework's logs, and a log while it is read
verl, nemo_rl, slime, skyrl, trl     the words of each framework
reading        all of it as a scenario's values
"""

from hybrid_des.interchange.loops.reading import FRAMEWORKS, LoopRead, Measured, read_loop

__all__ = ["FRAMEWORKS", "LoopRead", "Measured", "read_loop"]
