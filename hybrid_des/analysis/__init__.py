"""What a run amounts to: step time, idle time by cause, memory, link use, the timeline as a table."""
