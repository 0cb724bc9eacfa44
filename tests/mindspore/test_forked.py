"""Whether a zygote may fork MindSpore's ranks; the modules it imports are stand-ins here."""

from __future__ import annotations

import sys

import pytest

from taskd.adaptor.msrun import forked


@pytest.fixture
def modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(forked, "FIRST", ("first_stand_in",))
    monkeypatch.setattr(forked, "WARM", ("warm_stand_in",))
    thread = (
        "import threading\n"
        "go = threading.Event()\n"
        "one = threading.Thread(target=go.wait, daemon=True)\n"
        "one.start()\n"
    )

    def write(first: bool, warm: bool) -> None:
        (tmp_path / "first_stand_in.py").write_text(thread if first else "")
        (tmp_path / "warm_stand_in.py").write_text(thread if warm else "")

    yield write
    for name in ("first_stand_in", "warm_stand_in"):
        module = sys.modules.pop(name, None)
        if hasattr(module, "go"):
            module.go.set()
            module.one.join()


def test_threads_of_openblas_do_not_matter(modules):
    modules(first=True, warm=False)
    forked.warm()


def test_threads_of_mindspore_do(modules):
    modules(first=False, warm=True)
    with pytest.raises(SystemExit, match="has started 1 threads.*msrun starts"):
        forked.warm()


def test_a_thread_that_ends_meanwhile_hides_none(modules, monkeypatch):
    """join() returns before the kernel has taken the thread out of /proc."""
    modules(first=False, warm=False)
    threads = iter([{"1", "2"}, {"1", "3"}])
    monkeypatch.setattr(forked, "_threads", lambda: next(threads))
    with pytest.raises(SystemExit, match="has started 1 threads"):
        forked.warm()
