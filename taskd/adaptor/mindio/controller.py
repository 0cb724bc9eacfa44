"""The controller of the interface, in a process of the framework. taskd's manager replaces it, so
these functions only check their arguments and the order of calls."""

from __future__ import annotations

MOST_RANKS = 100_000
PORTS = range(1024, 65536)

_made = _started = False


def init(rank: int, world_size: int) -> None:
    """Raises ValueError."""
    global _made
    if type(world_size) is not int or not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size is {world_size!r}; it must be 1 to {MOST_RANKS}")
    if type(rank) is not int or not -1 <= rank < world_size:
        raise ValueError(f"rank is {rank!r}; it must be -1 to {world_size - 1}")
    _made = True


def start(bind_ip: str, port: int) -> None:
    """Raises ValueError, RuntimeError."""
    global _started
    if not _made:
        raise RuntimeError("tft_start_controller: call tft_init_controller first")
    if not isinstance(bind_ip, str) or bind_ip in ("", "0.0.0.0", "::"):
        raise ValueError(f"bind_ip is {bind_ip!r}; give the address of this node")
    if type(port) is not int or port not in PORTS:
        raise ValueError(f"port is {port!r}; it must be {PORTS.start} to {PORTS.stop - 1}")
    _started = True


def destroy() -> None:
    global _made, _started
    _made = _started = False


def started() -> bool:
    return _started
