"""From parts to a run: GPUs that run their programs, their perturbations, and their memory."""
