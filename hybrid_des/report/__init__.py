"""Reports, pictures and files of a run."""
