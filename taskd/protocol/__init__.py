"""What travels between manager, agents and ranks: messages (msgpack) and the keys that protect
them.

May import `taskd.core` and the standard library, msgpack and pyzmq. Next: `messages.py`, `keys.py`.
"""
