"""The ranks of this node: which run, which have died, and their replacements."""
