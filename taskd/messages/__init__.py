"""What is said between processes, one module for each direction, and how it is written as bytes.

Declarations only: no socket, no decision. May import the standard library and msgspec. A message is
declared once, with the sizes and ranges of its fields; what reaches or leaves a rank in
`to_rank.py` and `from_rank.py`, also where an agent passes it on. Each direction has a union of its
messages, and a decoder that knows no others. Next: `values.py`, `from_rank.py`, `codec.py`.
"""
