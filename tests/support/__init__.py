"""What tests share: paths, scenario builders, an oracle that shares no code with the package."""
