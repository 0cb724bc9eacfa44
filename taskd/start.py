"""Run a module of taskd without the working directory on its path: python .../taskd/start.py -m
taskd.manager ARGUMENTS.

`python -m` puts the working directory before the standard library, and a user's directory may well
have a signal.py, a random.py or a taskd/. -P would help, but only from Python 3.11 on, and
processes that a rank starts would inherit it. So this file is run by its path, and the directory
that Python then puts first, this file's own, is removed before anything is imported.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import signal

# "leave", from a launcher to a manager that it has started; which leaves by no other, as those are
# also sent to all processes of a job. Unused, like that of stacks.py
LEAVE = signal.SIGRTMAX - 4


def command(module: str, *arguments: str, python: str = "", unbuffered: bool = False) -> list[str]:
    """The command that starts `module`. It contains `-m` and the module's name, so that people find
    the process by them."""
    return [
        python or sys.executable,
        *(["-u"] if unbuffered else []),
        __file__,
        "-m",
        module,
        *arguments,
    ]


def _run(module: str, arguments: list[str]) -> None:
    """Run the module as `python -m` would. `__main__` is never put back: a forked replacement puts
    the user's script there permanently."""
    import importlib.util

    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    loader = getattr(spec, "loader", None)
    code = loader.get_code(spec.name) if spec is not None and loader is not None else None
    if spec is None or code is None:
        sys.exit(f"{sys.executable}: no module named {module}")
    sys.argv = [spec.origin or module, *arguments]
    exec(
        code,
        {
            "__name__": "__main__",
            "__file__": spec.origin,
            "__spec__": spec,
            "__package__": spec.parent,
        },
    )


if __name__ == "__main__":
    _run(sys.argv[2], sys.argv[3:])
