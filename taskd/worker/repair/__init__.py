"""Carries out the manager's orders until the loop goes on."""
