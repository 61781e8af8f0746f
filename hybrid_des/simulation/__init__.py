"""From parts to a run: GPUs that run their programs, what perturbs them, and their memory."""
