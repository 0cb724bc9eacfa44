"""The start and the end of a job's ranks: `forming.py` (until all are protected), `finishing.py`
(the end of a pass) and `restarts.py` (all start again, where they are not repaired one by one)."""
