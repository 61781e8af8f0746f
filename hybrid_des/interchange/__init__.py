"""What comes from other programs, and what goes to them."""
