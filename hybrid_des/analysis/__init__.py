"""Why a step took as long: metrics, idle time by cause, the critical path, what would help."""
