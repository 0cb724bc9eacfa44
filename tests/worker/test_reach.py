"""What a script's variables lead to, and what looking at them leaves behind."""

from __future__ import annotations

import sys
import weakref

from taskd.worker.discovery import frames, reach


class Thing:
    pass


def look():
    return frames.variables(sys._getframe(1))


def test_a_look_keeps_nothing_alive():
    def loop(captured):
        thing = Thing()
        seen = weakref.ref(thing)
        assert look()["thing"] is thing
        assert look()["captured"] is captured
        del thing
        assert seen() is None
        thing = Thing()
        return [thing for _ in range(1)], lambda: captured, locals()

    assert "thing" in loop(1)[2]


def test_a_look_into_a_generator_keeps_nothing_alive():
    def generator():
        thing = Thing()
        yield weakref.ref(thing)
        del thing
        yield

    running = generator()
    seen = next(running)
    assert reach.find([("", {"running": running})], lambda kind: kind is Thing)
    next(running)
    assert seen() is None


def test_what_the_script_has_of_its_own_locals_stays():
    def loop():
        rate = 1
        kept = locals()
        assert look()["rate"] == rate
        return kept

    assert loop()["rate"] == 1


def test_what_exec_has_put_among_the_locals_stays():
    def loop():
        exec("rate = 3")
        before = locals().get("rate")  # from Python 3.13 exec() leaves nothing there
        look()
        assert locals().get("rate") == before

    loop()


def test_a_namespace_is_no_snapshot():
    name = {"look": look}
    exec("x = 1\nseen = look()\nclass A:\n    y = 2\n    seen = look()", name)
    assert name["x"] == 1 and name["seen"]["x"] == 1
    assert name["A"].y == 2 and name["A"].seen["y"] == 2
    apart = {}
    exec("z = 1\nseen = look()", {"look": look}, apart)
    assert apart["z"] == 1 and apart["seen"]["z"] == 1
