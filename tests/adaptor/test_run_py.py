"""The import in torch/distributed/run.py, as text: put in, taken out, found, refused."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskd.adaptor import run_py
from taskd.adaptor.run_py import OURS, SED, Refused, installed, read, removed

PLAIN = (
    b'"""How to run:\n\n    torchrun train.py\n"""\n\nimport os\nimport sys\n\n\ndef main():\n   '
    b" pass\n"
)

# what may stand at the top level of a module, one statement or remark each
LINES = (
    "import os",
    "import os, sys",
    "import sys, os as system",
    "import os.path",
    "from os import path",
    "# import os, but a remark",
    '"""a text\nimport os\n"""',
    "x = 1; import os",
    "x = 1; \\\nimport os",
    "if True:\n    import os",
    "try:\n    import os.path\nexcept ImportError:\n    pass",
    "def f():\n    import os\n    return os",
    "y = 'ä import os'",
    "",
    "\f",
    "z = (\n    1,\n\n)",
)


@st.composite
def sources(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.sampled_from(LINES), max_size=12))
    lines.insert(draw(st.integers(0, len(lines))), "import os")
    if draw(st.booleans()):
        lines.insert(0, "from __future__ import annotations")
    text = "\n".join(lines) + draw(st.sampled_from(("", "\n", "\n\n")))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    source = draw(st.sampled_from((b"", b"\xef\xbb\xbf"))) + text.encode()
    try:
        ast.parse(source)
    except SyntaxError:
        assume(False)
    return source


def sed(source: bytes, times: int = 1) -> bytes:
    """What the documented line makes of it."""
    for _ in range(times):
        lines = source.split(b"\n")
        source = b"\n".join(SED + b"\n" + line if b"import os" in line else line for line in lines)
    return source


@given(sources())
def test_what_is_put_in_is_taken_out_again(source):
    made = installed(source)
    assert removed(made) == source
    assert read(made).ours == 1 and not read(source).installed


@given(sources())
def test_it_is_put_in_once(source):
    made = installed(source)
    assert installed(made) == made
    assert made.count(OURS) == 1


@given(sources())
def test_it_is_one_import_more_and_nothing_else(source):
    before, after = ast.parse(source), ast.parse(installed(source))
    added = [
        n for n in after.body if isinstance(n, ast.Import) and n.names[0].name == run_py.MODULE
    ]
    assert len(added) == 1
    following = after.body[after.body.index(added[0]) + 1 :]
    after.body.remove(added[0])
    assert ast.dump(before) == ast.dump(after)
    assert any(
        isinstance(n, ast.Import) and any(a.name == "os" for a in n.names) for n in following
    )


@given(sources(), st.integers(1, 3), st.booleans())
def test_what_sed_has_made_of_it_is_taken_out(source, times, ours_first):
    # sed breaks what it writes into the middle of; that is taken out too
    made = sed(installed(source) if ours_first else source, times)
    found = read(made)
    assert removed(made) == source
    assert found.sed == made.count(SED + b"\n") and found.ours == int(ours_first)
    assert installed(made) == installed(source)


@given(st.binary(max_size=200))
def test_anything_else_is_refused_or_done_exactly(source):
    try:
        made = installed(source)
    except Refused:
        return
    assert removed(made) == removed(source)


def test_the_model_of_sed_is_right(tmp_path):
    path = tmp_path / "run.py"
    for source in (
        PLAIN,
        b"import os",
        b"# import os\r\nimport os\r\n",
        b"import sys\n\nif 1:\n    import os.path\n",
    ):
        path.write_bytes(source)
        for times in (1, 2):
            subprocess.run(["sed", "-i", f"/import os/i {SED.decode()}", str(path)], check=True)
            assert path.read_bytes() == sed(source, times)


def test_this_torch(tmp_path):
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    source = removed(
        (Path(spec.submodule_search_locations[0]) / "distributed" / "run.py").read_bytes()
    )
    lines = installed(source).split(b"\n")
    assert lines[lines.index(OURS) + 1] == b"import os"
    assert removed(installed(source)) == source


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "no `import os` at its top level"),
        (b"import sys\n", "no `import os` at its top level"),
        (b"import os.path\n", "no `import os` at its top level"),
        (b"if True:\n    import os\n", "no `import os` at its top level"),
        (b"x = 1; import os\n", "no `import os` at its top level"),
        (b"import os\nx = (\n", "not valid Python: line 2"),
        (b"import os\n\0", "not valid Python"),
        (b"# coding: no-such\nimport os\n", "not valid Python"),
        (b"import os\nx = '\xff'\n", "not valid Python"),
        (b"import os\n" + b"(" * 5000 + b")" * 5000, "not valid Python"),
        (b"import os\r\nimport sys\n", "end in different ways"),
        (b"import os\rimport sys\r", "end in different ways"),
        (b"import os\n" + SED + b"\n", "line 2 imports taskd, but neither"),
        (b"import os\n" + SED + b"\nimport sys\n", "line 2 imports taskd, but neither"),
        (b"import os\nimport taskd\n", "line 2 imports taskd, but neither"),
        (
            b"import os\nfrom taskd.python.adaptor import patch\n",
            "line 2 imports taskd, but neither",
        ),
        (
            b"import os\n" + OURS.replace(b"takes", b"took") + b"\n",
            "line 2 imports taskd, but neither",
        ),
        (
            b"import os\nimport taskd.python.adaptor.patch as p\n",
            "line 2 imports taskd, but neither",
        ),
    ],
)
def test_refused(source, words):
    with pytest.raises(Refused, match=words):
        installed(source)


def test_where_it_goes():
    assert installed(PLAIN) == PLAIN.replace(b"\nimport os\n", b"\n" + OURS + b"\nimport os\n")
    windows = PLAIN.replace(b"\n", b"\r\n")
    assert installed(windows) == windows.replace(
        b"\nimport os\r\n", b"\n" + OURS + b"\r\nimport os\r\n"
    )
    assert run_py.WORDS not in OURS  # sed would put another line before it


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (PLAIN, "not installed"),
        (installed(PLAIN), "installed by `taskd patch`"),
        (sed(PLAIN), "installed by sed (once)"),
        (sed(PLAIN, 3), "installed by sed (3 lines)"),
        (sed(installed(PLAIN)), "installed by `taskd patch`, and by sed (once)"),
    ],
)
def test_state(source, state):
    assert read(source).state == state


@pytest.mark.parametrize("line", [2, 3, 11])
def test_a_line_in_the_middle_of_something_is_noticed(monkeypatch, line):
    monkeypatch.setattr(run_py, "_first_import", lambda _: line)
    with pytest.raises(
        Refused,
        match=("not valid Python" if line == 11 else f"line {line} is inside another statement"),
    ):
        installed(PLAIN)
