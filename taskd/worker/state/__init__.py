"""What is restored: the training state, a rank's own, and how they are recorded."""
