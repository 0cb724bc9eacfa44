"""The state in files, and back."""
