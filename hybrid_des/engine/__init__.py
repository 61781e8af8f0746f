"""SimPy's event loop with a clock of whole picoseconds, events at known times, and the rows that a run records.

No other package touches what SimPy keeps private.
"""
