"""What a run amounts to: metrics, link use, timeline."""
