"""The messages between processes, one module per direction, and their encoding.

Declarations only: no sockets, no decisions. Each message is declared once, with the sizes and
ranges of its fields; messages to and from ranks are in `to_rank.py` and `from_rank.py`, even where
an agent relays them. Each direction has a union of its messages and a decoder that knows no others.
Next: `values.py`, `from_rank.py`, `codec.py`.
"""
