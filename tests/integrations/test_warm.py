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
        ("import taskd\nfrom lightning.fabric import Fabric\n  import transformers", "*"),
        ("from taskd.integrations.os import system\nprint('import lightning')", ""),
        ("from lightning import Fabric", ""),  # without taskd
        ("import os, taskd\nimport lightning\nif os.environ['A'] == 'b': pass", "lightning"),
        ("import os, taskd\nos.environ['HF_HOME'] = 'here'\nimport lightning", ""),
        ("import os, taskd\nos.environ.setdefault('A', 'b')\nimport lightning", ""),
    ],
)
def test_a_script_names_its_trainers(tmp_path, text: str, found: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    arguments = ("-u", str(script), "more.py")
    found = found.replace("*", "lightning,transformers")
    assert trainers.named(arguments) == found
    assert trainers.named(("-u", "-m", "train")) == trainers.named(("none.py",)) == ""


def test_a_module_is_found_without_its_packages_being_imported(tmp_path, monkeypatch) -> None:
    package = tmp_path / "lab" / "trains"
    package.mkdir(parents=True)
    for place in (tmp_path / "lab", package):
        (place / "__init__.py").write_text("raise AssertionError('imported')")
    for name in ("one", "__main__"):
        (package / f"{name}.py").write_text("import taskd, lightning\nimport lightning")
    monkeypatch.chdir(tmp_path)
    assert trainers.named(("-u", "-m", "lab.trains.one", "a.py")) == "lightning"
    assert trainers.named(("-u", "-m", "lab.trains")) == "lightning"
    assert trainers.named(("-u", "-m", "lab.other")) == trainers.named(("-m", "no.such")) == ""


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
