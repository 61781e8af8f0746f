"""The sections of a scenario, each with the checks of its own values; frozen, so that they can be keys of caches."""
