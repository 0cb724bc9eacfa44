"""Carries out the manager's orders until the loop continues."""
