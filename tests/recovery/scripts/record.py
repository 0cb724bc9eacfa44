"""What a training script writes so that two runs can be compared bit for bit."""

import hashlib
import os
from pathlib import Path

import torch


class Record:
    """One file per rank, appended to by each process that holds the rank."""

    def __init__(self, out: Path, rank: int) -> None:
        self._file = open(out / f"rank-{rank}", "a")

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def step(self, step: int, *values: torch.Tensor) -> None:
        text = " ".join(v.item().hex() for v in values)
        print(f"step {step} {os.getpid()} {text}", file=self._file, flush=True)

    def committed(self, step: int) -> None:
        """What a script hears once of each step; `step` is for each commit."""
        print(f"committed {os.getpid()} {step} -", file=self._file, flush=True)

    def final(self, *objects: object) -> None:
        """Checksums of modules (parameters and buffers) and of the optimizers' whole state."""
        for value in objects:
            digest = hashlib.sha256()
            state = value.state_dict()
            for key, tensor in sorted(_tensors(state, ""), key=lambda pair: pair[0]):
                if hasattr(tensor, "to_local"):
                    tensor = tensor.to_local()
                digest.update(
                    f"{key} {tensor}".encode()
                    if not isinstance(tensor, torch.Tensor)
                    else key.encode() + tensor.cpu().numpy().tobytes()
                )
            print(
                f"final {os.getpid()} {type(value).__name__} {digest.hexdigest()}",
                file=self._file,
                flush=True,
            )


def leave(job: object) -> None:
    """End the process. An undisturbed run skips the interpreter's end: torch 2.13 with gloo aborts
    there in one run of four ("terminate called without an active exception"), also in a script that
    knows nothing of taskd."""
    if not job.protected:
        os._exit(0)


def _tensors(value: object, path: str):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}[{index}]")
    else:
        yield path, value
