"""Messages from the manager to an operator."""

from __future__ import annotations

from taskd.messages.values import Message, Name, Report


class Answer(Message, frozen=True):
    """The answer to `request`."""

    request: Name
    ok: bool
    text: Report


ToOperator = Answer
