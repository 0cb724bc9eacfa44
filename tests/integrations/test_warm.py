"""What is imported before ranks are forked, and what a fork sets right."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from taskd import trainers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from taskd.integrations.lightning import Protect\n", "lightning"),
        ("from taskd.integrations import transformers\n", "transformers"),
        ("import taskd.integrations.transformers\nimport taskd.integrations.lightning", "*"),
        ("import lightning\nfrom taskd.integrations.os import system", ""),
    ],
)
def test_a_script_names_its_trainers(tmp_path, text: str, found: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    arguments = ("-u", str(script), "more.py")
    assert trainers.named(arguments) == found.replace("*", "lightning,transformers")
    assert trainers.named(("-u", "-m", "train")) == trainers.named(("none.py",)) == ""


def test_only_what_is_known_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(trainers.importlib, "import_module", imported.append)
    monkeypatch.setenv(trainers.VARIABLE, "os,lightning,")
    trainers.warm()
    assert imported == ["lightning.pytorch"]


def test_a_fork_has_its_own_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    known = SimpleNamespace(rank_zero_only=SimpleNamespace(rank=0))
    monkeypatch.setitem(sys.modules, "lightning_utilities.core.rank_zero", known)
    trainers.forked()
    assert known.rank_zero_only.rank == 3
