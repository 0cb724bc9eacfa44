"""Replays to a replacement what the rank's first process learned and loaded."""
