"""Measurements on one's own machine with PyTorch: ops of pipelines, operators, collectives; a scenario of them."""
