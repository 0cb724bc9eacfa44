"""The names of fault codes: a device's, and those of the switches in its node.

A device's code is a hexadecimal number; `80e01801`, `0x80E01801` and `080E01801` are the same. A
switch's has four parts, `[0x00f1ff09,155913,cpu,na]`: number of the alarm, number of the fault or
`na`, what is at the other end of the link (`na`: the fault is in the switch itself), and a port,
always `na`. A code is kept as the one text that `parse_code` makes of all its spellings.
"""

from __future__ import annotations

import re

MOST_DIGITS = 16  # of a device's code: 64 bits
PEERS = {peer.lower(): peer for peer in ("na", "cpu", "npu", "L2")}
_DEVICE = re.compile(rf"(?:0x)?([0-9a-f]{{1,{MOST_DIGITS}}})", re.IGNORECASE | re.ASCII)
_SWITCH = re.compile(
    r"\[\s*0x(?P<alarm>[0-9a-f]{1,8})\s*,\s*(?P<fault>[0-9]{1,9}|na)\s*,\s*(?P<peer>\w{1,4})\s*"
    r",\s*na\s*\]",
    re.IGNORECASE | re.ASCII,
)


class BadCode(ValueError):
    """Not a fault code."""


def parse_code(text: str) -> str:
    """Parse the code of a device or a switch. Raises BadCode."""
    return parse_switch(text) if of_switch(text.strip()) else parse_device(text)


def parse_device(text: str) -> str:
    """Raises BadCode."""
    found = _DEVICE.fullmatch(text.strip())
    if found is None:
        raise BadCode(
            f"{text[:60]!r} is not a fault code: up to {MOST_DIGITS} hexadecimal digits, such as"
            " 80E01801, or a switch's, such as [0x00f1ff09,155913,cpu,na]"
        )
    return f"{int(found[1], 16):08X}"


def parse_switch(text: str) -> str:
    """Raises BadCode."""
    found = _SWITCH.fullmatch(text.strip())
    if found is None or found["peer"].lower() not in PEERS:
        raise BadCode(
            f"{text[:60]!r} is not a switch's fault code: [ALARM,FAULT,PEER,na], such as"
            f" [0x00f1ff09,155913,cpu,na]; FAULT may be na, PEER is {', '.join(PEERS.values())}"
        )
    fault = "na" if found["fault"].lower() == "na" else int(found["fault"])
    return f"[0x{int(found['alarm'], 16):08x},{fault},{PEERS[found['peer'].lower()]},na]"


def check(code: str) -> None:
    """Raises BadCode if `code` is not what `parse_code` returns."""
    if parse_code(code) != code:
        raise BadCode(f"{code[:60]!r} is not how this code is written")


def of_switch(code: str) -> bool:
    return code.startswith("[")
