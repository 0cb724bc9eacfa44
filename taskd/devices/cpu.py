"""CPU tensors and gloo.

Shutting down gloo's sockets frees a rank blocked in a gloo collective; libtaskd's interrupter does
that as soon as the rank is interrupted. abort() and shutdown() of gloo in torch 2.13 have no effect
(measured, docs/design.md).
"""

from __future__ import annotations

from taskd.devices.device import Device


class Cpu(Device):
    def synchronize(self) -> None:
        """Do nothing: nothing is queued on a CPU."""

    def leave_collectives(self) -> None:
        """Do nothing: a thread that runs this has left its collectives."""
