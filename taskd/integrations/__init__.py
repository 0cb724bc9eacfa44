"""Protects jobs whose loop belongs to a trainer: one module for each, imported by its user."""
