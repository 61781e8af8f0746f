"""What each stage of the model costs."""
