"""Protects jobs whose loop belongs to a trainer: one package for each, imported by its user."""
