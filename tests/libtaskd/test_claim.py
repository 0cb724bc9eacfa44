"""Who claims a slot, who must not, and that nothing is harmed when claiming fails."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.cython_api import library_path, slot
from taskd.cython_api.page import Page

WHO = "from taskd.cython_api import library, slot; print(slot.number(), library.preloaded(), flush=True);"


def test_the_constructor_claims(page, ranks):
    status, out, err = ranks.run(WHO, slot=1, RANK="13", TASKD_INCARNATION="2")
    assert (status, out.split()) == (0, ["1", "True"]), err
    view = page.read(1)
    assert view.rank == 13
    assert view.incarnation == 2
    assert view.pid == ranks.processes[0].pid
    assert view.attached is True
    assert page.read(0).attached is False


def test_a_list_in_rank_is_no_rank(page, ranks):
    assert ranks.run(WHO, RANK="0,1,2,3")[0] == 0
    assert page.read(0).rank is None


@pytest.mark.parametrize("missing", ["TASKD_SLOT", "TASKD_PAGE"])
def test_rank_variables_alone_claim_nothing(page, ranks, missing):
    env = {"RANK": "0", "LOCAL_RANK": "0"}
    process = ranks.start(f"import os; {WHO}", **env, **({"TASKD_PAGE": ""} if missing == "TASKD_PAGE" else {}),
                          slot=None if missing == "TASKD_SLOT" else 0)  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.split()) == (0, ["None", "True"]), err
    assert not page.read(0).attached


def test_launchers_pass_everything_through(page, ranks):
    code = WHO + "import os; print(os.environ.get('LD_PRELOAD'), os.environ.get('TASKD_SLOT'))"
    rank = ranks.command(
        [
            "bash",
            "-c",
            f'env true; taskset -p $$ >/dev/null; exec nice -n 0 "{sys.executable}" -c "{code}"',
        ]
    )
    out, err = rank.communicate(timeout=60)
    assert out.split() == ["0", "True", "None", "None"], err
    assert page.read(0).pid == rank.pid


@pytest.mark.parametrize(
    ("why", "code"),
    [
        (
            "bash",
            (
                "import subprocess; print(subprocess.run(['bash', '-c', CMD], text=True,"
                " capture_output=True).stdout)"
            ),
        ),
        ("system", "import os, sys; sys.stdout.flush(); os.system(CMD)"),
        (
            "spawn",
            "import os; os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', CMD], os.environ), 0)",
        ),
        (
            "python",
            (
                "import subprocess, sys; subprocess.run([sys.executable, '-c', f'import os;"
                " os.system({CMD!r})'])"
            ),
        ),
    ],
)
def test_children_know_nothing_of_it(page, ranks, why, code):
    command = "echo [$LD_PRELOAD] [$TASKD_SLOT] $(grep -c libtaskd /proc/$$/maps)"
    status, out, err = ranks.run(f"CMD = {command!r}\n{code}")
    assert (status, out.split()) == (0, ["[]", "[]", "0"]), err
    assert page.read(0).pid == ranks.processes[0].pid
    assert page.records(0) == []


def test_other_preloaded_libraries_stay(page, ranks, tmp_path):
    other = tmp_path / "libother.so"
    made = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(other)], input="int other;", text=True
    )
    if made.returncode != 0:
        pytest.skip("no C compiler")
    moved = tmp_path / "renamed.so"
    moved.symlink_to(library_path())
    for preload, left in [
        (f"{library_path()}:{other}", str(other)),
        (f"{other} {library_path()}", str(other)),
        (f"{other}:{moved}:{other}", f"{other}:{other}"),
    ]:
        code = "import os; print(os.environ.get('LD_PRELOAD'))"
        status, out, err = ranks.run(code, LD_PRELOAD=preload)
        assert (status, out.strip()) == (0, left), err
        page.reset(0)


def test_static_program(page, ranks, tmp_path):
    source = (
        'extern char **environ;\nint puts(const char *);\nint main(void) { puts("ran"); return'
        " 5; }\n"
    )
    program = tmp_path / "static"
    made = subprocess.run(
        ["gcc", "-static", "-x", "c", "-", "-o", str(program)],
        input=source,
        text=True,
        capture_output=True,
    )
    if made.returncode != 0:
        pytest.skip("no static libc to link with")
    direct = ranks.command([str(program)])
    assert direct.communicate(timeout=60)[0] == "ran\n" and direct.returncode == 5
    status, out, _ = ranks.run(f"import os; os.execv({str(program)!r}, ['static'])")
    assert (status, out) == (5, "ran\n")
    assert page.wait_death(0, 60_000), "exec ends the thread that held the slot's lock"


# ---- nothing is harmed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "/dev/shm/taskd-test-no-such-page",
        "/nonexistent/folder/page",
        "/dev/null",
        "/",
        "/etc/hostname",
        "x" * 5000,
    ],
)
def test_no_page(ranks, where):
    """No agent, no file, not a page: the program runs, and its children do not try either."""
    code = WHO + "import os; print(os.environ.get('TASKD_SLOT'), os.environ.get('LD_PRELOAD'))"
    status, out, err = ranks.run(code, page=where)
    assert (status, out.split(), err) == (0, ["None", "True", "None", "None"], "")


@pytest.mark.parametrize(
    "slot", ["2", "-1", "4294967295", "99999999999999999999", "one", "0x1", ""]
)
def test_no_such_slot(page, ranks, slot):
    status, out, err = ranks.run(WHO, TASKD_SLOT=slot)
    assert (status, out.split(), err) == (0, ["None", "True"], "")
    assert not page.read(0).attached and not page.read(1).attached


def test_inactive_process_dies_as_ever(ranks):
    for code, expected in [
        ("import os; os._exit(9)", 9),
        ("import os; os.abort()", -6),
        ("raise SystemExit(4)", 4),
    ]:
        assert ranks.run(code, slot=None)[0] == expected


def test_read_only_page(page, ranks, tmp_path):
    if os.geteuid() == 0:
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "taskd-test", str(tmp_path)],
            capture_output=True,
        ).returncode:
            pytest.skip("may not mount")
        try:
            Page.create(tmp_path / "page", 1).close(unlink=False)
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
            where = str(tmp_path / "page")
            with pytest.raises(OSError) as error:
                Page.create(tmp_path / "other", 1)
            assert error.value.errno == errno.EROFS
            assert ranks.run(WHO, page=where)[:2] == (0, "None True\n")
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)
    else:
        Path(page.path).chmod(0o400)
        assert ranks.run(WHO)[:2] == (0, "None True\n")


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_forked_children_are_not_the_rank(page, ranks):
    """Children of a process with many threads crash, abort and exit; the parent's slot hears
    nothing of it."""
    status, out, err = ranks.run(
        """
        import ctypes, os, threading
        from taskd.cython_api import slot, sockets
        stop = threading.Event()
        def churn():
            while not stop.is_set():
                bytearray(10_000)
        threads = [threading.Thread(target=churn) for _ in range(4)]
        [t.start() for t in threads]
        sockets.begin(0)
        slot.progress(5, slot.COMPUTING)
        ends = [
            lambda: ctypes.memset(0xbad0, 0, 1),
            os.abort,
            lambda: os._exit(slot.number() is None and slot.interruption() == 0),
            lambda: slot.progress(99, slot.DONE),
        ]
        seen = []
        for round in range(10):
            for end in ends:
                pid = os.fork()
                if pid == 0:
                    try:
                        end()
                    except OSError:
                        os._exit(3)
                    os._exit(4)
                seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.set()
        [t.join() for t in threads]
        assert seen == [-11, -6, 1, 3] * 10, seen
        print(slot.number())
        """,
        "-W",
        "ignore",
        "-X",
        "faulthandler",
    )
    assert (status, out.strip()) == (0, "0"), err
    view = page.read(0)
    assert (view.pid, view.step, view.consistent) == (ranks.processes[0].pid, 5, True)
    assert page.records(0) == []


def test_a_forked_child_can_claim_another_slot(page, ranks, line):
    """What a zygote does: its children claim their own slots."""
    zygote = ranks.start(
        f"""
        import os, time
        from taskd.cython_api import slot
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = "7"
            slot.attach({page.path!r}, 1)
            slot.progress(3, slot.COMPUTING)
            print(os.getpid(), flush=True)
            time.sleep(600)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        """,
        slot=None,
    )
    child = int(line(zygote))
    view = page.read(1)
    assert (view.pid, view.rank, view.step) == (child, 7, 3)
    os.kill(child, signal.SIGSEGV)
    assert page.wait_death(1, 60_000)
    assert line(zygote) == "-11"
    assert [record["pid"] for record in page.records(1)] == [child]


# ---- life and death --------------------------------------------------------------------------------------------------


def test_calls_in_one_process(page):
    assert slot.number() is None
    with pytest.raises(OSError) as error:
        slot.progress(1, slot.COMPUTING)
    assert error.value.errno == errno.ENOTCONN and "slot" in str(error.value)
    page.copying(True)
    assert slot.copying() is False, "nobody keeps copies of a process without a slot"
    slot.attach(page.path, 1)
    try:
        assert slot.copying() is True
        page.copying(False)
        assert slot.copying() is False
        slot.attach(page.path, 1)
        with pytest.raises(OSError) as error:
            slot.attach(page.path, 0)
        assert error.value.errno == errno.EALREADY
        assert slot.number() == 1
    finally:
        slot.detach()
    assert not page.read(1).attached
    with pytest.raises(OSError) as error:
        page.wait_death(1, 0)
    assert error.value.errno == errno.ENOLCK, "a slot that was let go is not a dead one"
    assert slot.number() is None


def test_only_the_main_thread_may_claim(page):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError) as error:
        pool.submit(slot.attach, page.path, 0).result()
    assert error.value.errno == errno.EPERM


def test_library_needs_libc_only():
    if shutil.which("ldd") is None:
        pytest.skip("no ldd")
    out = subprocess.run(["ldd", library_path()], text=True, capture_output=True, check=True).stdout
    names = {line.split()[0].split("/")[-1] for line in out.splitlines()}
    assert all(
        name.startswith(("linux-vdso", "libc.so", "ld-linux", "libdl.so", "libpthread.so"))
        for name in names
    ), names
