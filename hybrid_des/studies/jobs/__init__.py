"""Several jobs on one fabric: each alone, all together, who waits for whom, and what would help."""
