"""The names of fault codes: a device's, and those of the switches in its node.

A device's code is a hexadecimal number; `80e01801`, `0x80E01801` and `080E01801` are the same. A
switch's has four parts, `[0x00f1ff09,155913,cpu,na]`: number of the alarm, number of the fault or
`na`, what is at the other end of the link (`na`: the fault is in the switch itself), and a port,
always `na`. Both are one number here, so that they are counted, timed and kept alike.
"""

from __future__ import annotations

import re

MOST_DIGITS = 16  # of a device's code: 64 bits
PEERS = ("na", "cpu", "npu", "L2")
# a switch's code as a number: this bit, the alarm from bit 40, the fault from bit 8, the peer
_SWITCH = 1 << 80
_NO_FAULT = 0xFFFFFFFF  # as the driver has it
_FORM = re.compile(
    r"\[\s*0x(?P<alarm>[0-9a-f]{1,8})\s*,\s*(?P<fault>[0-9]{1,9}|na)\s*,\s*(?P<peer>\w{1,4})\s*"
    r",\s*na\s*\]",
    re.IGNORECASE | re.ASCII,
)
_PEERS = {peer.lower(): number for number, peer in enumerate(PEERS)}


class BadCode(ValueError):
    """Not a fault code."""


def parse_code(text: str) -> int:
    """Parse the code of a device or a switch. Raises BadCode."""
    return parse_switch(text) if text.strip()[:1] == "[" else parse_device(text)


def parse_device(text: str) -> int:
    """Raises BadCode."""
    digits = text.strip()
    digits = digits[2:] if digits[:2].lower() == "0x" else digits
    if not 1 <= len(digits) <= MOST_DIGITS or any(
        d not in "0123456789abcdefABCDEF" for d in digits
    ):
        raise BadCode(
            f"{text[:60]!r} is not a fault code: up to {MOST_DIGITS} hexadecimal digits, such as"
            " 80E01801, or a switch's, such as [0x00f1ff09,155913,cpu,na]"
        )
    return int(digits, 16)


def parse_switch(text: str) -> int:
    """Raises BadCode."""
    found = _FORM.fullmatch(text.strip())
    if found is None or found["peer"].lower() not in _PEERS:
        raise BadCode(
            f"{text[:60]!r} is not a switch's fault code: [ALARM,FAULT,PEER,na], such as"
            f" [0x00f1ff09,155913,cpu,na]; FAULT may be na, PEER is {', '.join(PEERS)}"
        )
    fault = _NO_FAULT if found["fault"].lower() == "na" else int(found["fault"])
    return _SWITCH | int(found["alarm"], 16) << 40 | fault << 8 | _PEERS[found["peer"].lower()]


def of_switch(code: int) -> bool:
    return bool(code & _SWITCH)


def show(code: int) -> str:
    """The code as text, which `parse_code` reads."""
    if not of_switch(code):
        return f"{code:08X}"
    alarm, fault, peer = code >> 40 & 0xFFFFFFFF, code >> 8 & 0xFFFFFFFF, PEERS[code & 0xFF]
    return f"[0x{alarm:08x},{'na' if fault == _NO_FAULT else fault},{peer},na]"
