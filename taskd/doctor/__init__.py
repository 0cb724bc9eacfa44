"""`taskd doctor`: checks whether this machine can run a job. One file per topic, one small function
per check, which returns a Finding.

May import everything but `taskd.cli`. A check gets what it examines (environment, paths, limits) as
arguments and changes nothing. Start with `examination.py`, which lists and runs the checks.
"""
