"""Gradient reduction: buckets, the groups that reduce them, and when."""
