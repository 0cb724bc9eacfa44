"""The manager's files and observers: the journal's file (`journal.py`) and its entries
(`writer.py`), the state for the next manager (`continuity.py`), both in files of JSON lines with
one writer (`line_file.py`), and metrics and notices (`observers.py`)."""
