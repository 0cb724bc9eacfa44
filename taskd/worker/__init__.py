"""The side of taskd inside a training process: the attempt loop, interruption, communicators, state
and its repair.

Start with `job.py` (what the script sees) and `protection.py` (`taskd.protect`), then
`training/loop.py` and `training/attempts.py` (under protection), then `repair/session.py` (what the
rank does when it is interrupted) and `repair/restore.py` (how it gets its state back).
"""
