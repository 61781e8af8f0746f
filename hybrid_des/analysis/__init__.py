"""Analysis of a run: step time, idle time by cause, memory, link use, the timeline as a table."""
