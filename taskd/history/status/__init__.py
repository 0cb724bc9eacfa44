"""The content of `taskd status`: `model.py` has the data, from a manager's answer or, without a
manager, from the journal; `rendering.py` makes it readable. All of it is pure; taskd/cli/status.py
asks, reads and prints."""
