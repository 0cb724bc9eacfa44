"""Finds state that the script trains with, or carries from step to step, but did not give to
protect()."""
