"""What is computed: models as layers, random durations, and the small model that is really trained."""
