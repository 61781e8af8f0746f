"""Two runs side by side: what changed, and what each change did to the step."""
