"""A run as text, pictures, a page and files."""
