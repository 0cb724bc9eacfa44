"""Programs that lose pages of their memory."""

from __future__ import annotations

import mmap

PAGE = mmap.PAGESIZE
LOST = (2, 4)  # BUS_ADRERR or BUS_MCEERR_AR, by kernel

MEMORY = """
    import ctypes, errno, mmap, os, socket, struct, sys, threading
    from taskd.cython_api import damage, library, poison, slot

    PAGE = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)  # lets other threads run while it is inside
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.memchr.restype = ctypes.c_void_p
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def pages(count, fd=-1):
        memory = mmap.mmap(fd, count * PAGE, flags=mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.memset(address, 7, count * PAGE)
        return memory, address

    def say(*words):
        print(*words, flush=True)
"""
