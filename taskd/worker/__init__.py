"""Our side inside a training process: the attempt loop, pause, communicators, state and its repair.

May import `taskd.core`, `taskd.protocol`, `taskd.devices`, `taskd.vault`, `taskd.cython_api` and
torch. Start with `job.py` (what the script sees), then `loop.py` and `attempts.py` (under
protection), then `conversation.py` (what the rank does when it is told to pause).
"""
