"""The birth and the end of a rank's process."""
