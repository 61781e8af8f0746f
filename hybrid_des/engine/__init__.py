"""SimPy's event loop with a clock of whole picoseconds, events at known times, and the rows that a run records.

No other package touches private attributes of SimPy's objects; subclasses may set their own.
"""
