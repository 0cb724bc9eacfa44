"""What happens to the sources under way."""

import shutil
import zipfile
from pathlib import Path


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def edit(kind: str, here: Path) -> None:
    if kind == "script":
        replace(here / "train.py", "RATE = 0.05", "RATE = 0.5")
    elif kind == "model":
        replace(here / "model.py", "Dropout(0.1)", "Dropout(0.9)")
    elif kind == "broken":
        (here / "model.py").write_text("def (")
        (here / "train.py").write_text("def (")
    elif kind == "removed":
        for name in ("train.py", "model.py", "late.py", "optional.py"):
            (here / name).unlink(missing_ok=True)
        shutil.rmtree(here / "space")
        shutil.rmtree(here / "__pycache__", ignore_errors=True)
    elif kind == "shape":
        replace(here / "model.py", "WIDTH = 24", "WIDTH = 25")
    elif kind == "late":
        replace(here / "late.py", "1.0", "2.0")
        replace(here / "space" / "inner.py", "0.25", "0.75")
    elif kind == "new":
        for name in ("optional", "wave"):
            (here / f"{name}.py").write_text("FACTOR = 5.0\nraise RuntimeError('it is new')")
        for name in ("model", "space"):  # packages, which come before modules and namespaces
            (here / name).mkdir(exist_ok=True)
            (here / name / "__init__.py").write_text("raise RuntimeError('it is new')")
    elif kind == "zip":
        with zipfile.ZipFile(here) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        files["model.py"] = files["model.py"].replace(b"Dropout(0.1)", b"Dropout(0.9)")
        del files["late.py"]
        here.unlink()
        with zipfile.ZipFile(here, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
