"""A module of a script, whose globals a loop changes."""

calls, seen = 0, {"inputs": 0}
