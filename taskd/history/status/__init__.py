"""What `taskd status` shows: `model.py` is the data, from a manager's answer or, where there is no
manager, from the journal; `rendering.py` makes it readable. All of it is pure; taskd/cli/status.py
asks, reads and prints."""
