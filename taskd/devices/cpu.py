"""CPU tensors and gloo.

A rank that is blocked in a gloo collective is freed by shutting down gloo's sockets, which libtaskd's interrupter does the
moment a pause is asked for; gloo 2.13's abort() and shutdown() have no effect (measured, docs/design.md).
"""

from __future__ import annotations

from taskd.devices.device import Device, causes, is_distributed_error

# gloo raises plain RuntimeError; its texts carry the source file they come from. Texts: gloo transport/tcp/*.cc of torch 2.4-2.13.
_GLOO_MARKS = ("gloo/transport", "third_party/gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")


class Cpu(Device):
    def communication_failure(self, error: BaseException) -> bool:
        return any(
            is_distributed_error(e) or (isinstance(e, RuntimeError) and any(mark in str(e) for mark in _GLOO_MARKS)) for e in causes(error)
        )

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""

    def leave_collectives(self) -> None:
        """Nothing is queued on a CPU: whoever runs this code has left."""
