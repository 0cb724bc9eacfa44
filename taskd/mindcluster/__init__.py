"""The vendor's words: fault codes and levels of devices, and what its settings call what `core`
does. `core` does not know them."""
