"""What a rank's first process learns and loads, given again to its replacement."""
