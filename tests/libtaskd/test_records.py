"""What a dying process leaves in its slot, and that it dies exactly as it would have without
libtaskd."""

from __future__ import annotations

import signal
import sys

import pytest

from taskd.cython_api import slot

FAULT = "import ctypes; ctypes.memset(0xbad0, 0, 1)"
AT_STEP_8 = "from taskd.cython_api import slot; slot.progress(8, slot.UPDATING);"


@pytest.mark.parametrize("flags", [(), ("-X", "faulthandler")], ids=["plain", "faulthandler"])
def test_fault_keeps_its_address(page, ranks, flags):
    status, _, err = ranks.run(AT_STEP_8 + FAULT, *flags)
    assert status == -signal.SIGSEGV
    [record] = page.records(0)
    assert (record["kind"], record["sig"], record["addr"]) == ("signal", signal.SIGSEGV, 0xBAD0)
    assert (record["step"], record["phase"]) == (8, slot.UPDATING)
    assert record["pid"] == ranks.processes[0].pid == record["tid"]
    assert record["ip"] != 0
    assert ("Segmentation fault" in err) == bool(flags)


@pytest.mark.parametrize("flags", [(), ("-X", "faulthandler")], ids=["plain", "faulthandler"])
def test_abort(page, ranks, flags):
    status, _, err = ranks.run("import os; os.abort()", *flags)
    assert status == -signal.SIGABRT
    [record] = page.records(0)
    assert (record["kind"], record["sig"]) == ("abort", signal.SIGABRT)
    assert ("Aborted" in err) == bool(flags)


@pytest.mark.parametrize("flags", [(), ("-X", "faulthandler")], ids=["plain", "faulthandler"])
def test_exit_without_cleanup(page, ranks, flags):
    status, _, _ = ranks.run("import os; os._exit(37)", *flags)
    assert status == 37
    [record] = page.records(0)
    assert (record["kind"], record["code"]) == ("exit", 37)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"])
@pytest.mark.parametrize("flags", [(), ("-X", "faulthandler")], ids=["plain", "faulthandler"])
def test_signal_from_outside(page, ranks, line, name, flags):
    rank = ranks.start("import time; print('up', flush=True); time.sleep(600)", *flags)
    line(rank)
    rank.send_signal(getattr(signal, name))
    assert rank.wait(60) == -getattr(signal, name)
    [record] = page.records(0)
    assert (record["kind"], record["sig"], record["addr"]) == ("signal", getattr(signal, name), 0)
    assert record["code"] <= 0


def test_fault_in_another_thread(page, ranks):
    status, _, _ = ranks.run(
        "import ctypes, threading\nt = threading.Thread(target=ctypes.memset, args=(0xbad0, 0,"
        " 1))\nt.start()\nt.join()"
    )
    assert status == -signal.SIGSEGV
    [record] = page.records(0)
    assert record["addr"] == 0xBAD0
    assert record["tid"] != record["pid"]


def test_overflow_of_the_main_stack(page, ranks):
    # The C library's qsort calls back into Python, which calls qsort: C frames until there is no
    # more stack.
    status, _, _ = ranks.run("""
        import ctypes, sys
        sys.setrecursionlimit(10**9)
        libc = ctypes.CDLL(None)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        def compare(a, b):
            libc.qsort((ctypes.c_int * 2)(), 2, 4, callback)
            return 0
        callback = kind(compare)
        compare(0, 0)
    """)
    if status == 0 and sys.version_info >= (3, 12):
        pytest.skip("this Python ends the recursion by itself")
    assert status == -signal.SIGSEGV
    assert page.records(0)[-1]["sig"] == signal.SIGSEGV


def test_a_python_handler_still_runs_and_the_process_lives(page, ranks):
    status, out, _ = ranks.run("""
        import os, signal
        assert signal.getsignal(signal.SIGABRT) == signal.SIG_DFL
        signal.signal(signal.SIGABRT, lambda *a: print("handled"))
        os.kill(os.getpid(), signal.SIGABRT)
        print("alive")
    """)
    assert (status, out.split()) == (0, ["handled", "alive"])
    assert page.records(0)[0]["sig"] == signal.SIGABRT


def test_handlers_are_what_the_program_installed(ranks):
    """The program never sees ours: sigaction and signal give back what was set through them, flags
    and mask included."""
    status, out, err = ranks.run("""
        import ctypes, signal
        libc = ctypes.CDLL(None)
        class Action(ctypes.Structure):
            _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int),
                        ("restorer", ctypes.c_void_p)]
        old, new = Action(), Action(handler=1, flags=0x10000000)  # SIG_IGN, SA_RESTART
        new.mask[0] = 0x400
        assert libc.sigaction(11, None, ctypes.byref(old)) == 0 and not old.handler, old.handler
        assert libc.sigaction(11, ctypes.byref(new), ctypes.byref(old)) == 0 and not old.handler
        assert libc.sigaction(11, None, ctypes.byref(old)) == 0
        assert (old.handler, old.mask[0], old.flags & 0x10000000) == (1, 0x400, 0x10000000)
        libc.signal.restype = ctypes.c_void_p
        assert libc.signal(11, None) == 1
        assert not libc.signal(11, None)
        print("same")
    """)
    assert (status, out.strip()) == (0, "same"), err


def test_fault_inside_a_chained_handler(page, ranks):
    status, _, _ = ranks.run("""
        import ctypes
        libc = ctypes.CDLL(None)
        class Action(ctypes.Structure):
            _fields_ = [("handler", ctypes.CFUNCTYPE(None, ctypes.c_int)), ("mask", ctypes.c_ulong * 16),
                        ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]
        def worse(sig):
            libc.signal(sig, None)
            ctypes.memset(0xbad1, 0, 1)
        action = Action(handler=Action._fields_[0][1](worse), flags=0x40000000)  # SA_NODEFER
        assert libc.sigaction(11, ctypes.byref(action), None) == 0
        ctypes.memset(0xbad0, 0, 1)
    """)
    assert status == -signal.SIGSEGV
    assert [record["addr"] for record in page.records(0)] == [0xBAD0, 0xBAD1]


def test_ignored_signal_is_no_death(page, ranks):
    status, out, _ = ranks.run("""
        import os, signal
        signal.signal(signal.SIGFPE, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGFPE)
        print("alive")
    """)
    assert (status, out.strip()) == (0, "alive")
    assert page.records(0) == []


def test_only_the_newest_records_are_kept_oldest_first(page, ranks):
    status, _, _ = ranks.run("""
        import os, signal
        from taskd.cython_api import slot
        signal.signal(signal.SIGFPE, lambda *a: None)
        for step in range(6):
            slot.progress(step, slot.COMPUTING)
            os.kill(os.getpid(), signal.SIGFPE)
    """)
    assert status == 0
    assert [record["step"] for record in page.records(0)] == [2, 3, 4, 5]


def test_subprocess_leaves_faulthandler_in_place(page, ranks):
    """subprocess resets signal handlers between vfork and exec, in memory that it shares with
    us."""
    status, _, err = ranks.run(
        "import subprocess, ctypes\nsubprocess.run(['true'])\nsubprocess.run(['true'],"
        " restore_signals=False)\n" + FAULT,
        "-X",
        "faulthandler",
    )
    assert status == -signal.SIGSEGV
    assert "Segmentation fault" in err
    assert [record["addr"] for record in page.records(0)] == [0xBAD0]


def test_failed_exec_in_a_child_is_not_our_exit(page, ranks):
    status, out, _ = ranks.run("""
        import subprocess
        try:
            subprocess.run(["/nonexistent/program"])
        except FileNotFoundError:
            print("told")
    """)
    assert (status, out.strip()) == (0, "told")
    assert page.records(0) == []


def test_loaded_late_records_without_interposition(page, ranks):
    """Without LD_PRELOAD the binding attaches: faults are recorded, _exit is not."""
    attach = (
        f"from taskd.cython_api import library, slot; slot.attach({page.path!r}, 0); assert not"
        " library.preloaded();"
    )
    status, _, err = ranks.run(attach + FAULT, slot=None, LD_PRELOAD="")
    assert status == -signal.SIGSEGV, err
    assert [record["addr"] for record in page.records(0)] == [0xBAD0]
