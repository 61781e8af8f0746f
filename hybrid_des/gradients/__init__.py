"""Gradient reduction: buckets, replica groups, and timing."""
