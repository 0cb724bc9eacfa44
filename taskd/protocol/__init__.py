"""How messages travel between manager, agents and operators: sockets, and the keys that protect
them.

May import `taskd.messages`, `taskd.core`, the standard library and pyzmq. Next: `keys.py`,
`link.py`.
"""
