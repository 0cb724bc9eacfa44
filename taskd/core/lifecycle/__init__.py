"""Beginning and end of a job whose ranks are well: `forming.py` (until all ranks are protected),
`finishing.py` (the end of a pass) and `restarts.py` (all ranks again, where they are not repaired
one by one)."""
