"""The loop: attempts, what is recorded at which step, batches that are handed out again."""
