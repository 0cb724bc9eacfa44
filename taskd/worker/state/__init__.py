"""The state to restore, replicated and private, and how it is recorded."""
