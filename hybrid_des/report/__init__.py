"""What is said about a run, and how it is drawn."""
