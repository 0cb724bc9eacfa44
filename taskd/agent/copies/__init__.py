"""Copies of the ranks' records on other nodes."""
