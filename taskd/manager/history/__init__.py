"""What the manager writes down, and who follows it: the journal's file (`journal.py`) and what
goes into it (`writer.py`), what the next manager must know (`continuity.py`), both in files of JSON
lines with one writer (`line_file.py`), and metrics and notices (`observers.py`)."""
