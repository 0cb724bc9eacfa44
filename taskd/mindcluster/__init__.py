"""The vendor's terms, which `core` does not know: fault codes and levels of devices, and the
settings that name what `core` does."""
