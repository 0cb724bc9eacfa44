"""The side of taskd inside a training process: the attempt loop, interruption, communicators, state
and its repair.

May import `taskd.core`, `taskd.protocol`, `taskd.devices`, `taskd.records.store`,
`taskd.cython_api` and torch. Start with `job.py` (what the script sees), then `loop.py` and
`attempts.py` (under protection), then `session.py` (what the rank does when it is interrupted).
"""
