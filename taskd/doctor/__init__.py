"""`taskd doctor`: whether this machine can run a job. One file per theme, one small function per
check, which returns a Finding.

May import everything but `taskd.cli`. A check is given what it looks at (environment, paths,
limits) and changes nothing. Start with `examination.py`: which checks there are, and how they are
run.
"""
