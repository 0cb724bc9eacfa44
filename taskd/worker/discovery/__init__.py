"""Finds what the script trains with and carries on beside what it gave to protect()."""
