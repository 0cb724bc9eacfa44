"""The ranks of this node: what runs, what has died, what replaces it."""
