"""How messages travel between manager, agents and operators: sockets, and the keys that protect
them.

Next: `keys.py`, `link.py`.
"""
