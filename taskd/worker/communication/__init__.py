"""Process groups and what they keep; a rank's connection to its agent."""
