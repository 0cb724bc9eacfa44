"""The import paths that the documents show; nothing lives here."""
