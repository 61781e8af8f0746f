"""Pipeline schedules as data: the plan, its check, its text forms."""
