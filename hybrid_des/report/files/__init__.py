"""Output formats: functions that write files into a folder and register their names."""
