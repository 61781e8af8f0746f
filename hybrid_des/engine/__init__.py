"""The room that knows SimPy's event loop: clock, events, recorder."""
