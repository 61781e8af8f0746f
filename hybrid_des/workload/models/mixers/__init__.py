"""Mixers: how a block of a transformer lets tokens see each other, one per file; see `registration`."""
