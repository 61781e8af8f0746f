"""What a stage costs on a rank: time, traffic, memory and parameters."""
