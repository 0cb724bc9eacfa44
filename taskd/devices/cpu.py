"""CPU tensors and gloo.

A rank that is blocked in a gloo collective is freed by shutting down gloo's sockets, which
libtaskd's interrupter does the moment a pause is asked for; gloo 2.13's abort() and shutdown() have
no effect (measured, docs/design.md).
"""

from __future__ import annotations

from taskd.devices.device import Device


class Cpu(Device):
    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""

    def leave_collectives(self) -> None:
        """Nothing is queued on a CPU: whoever runs this code has left."""
