ABI: int
VERSION: str

def preloaded() -> bool: ...
