"""What the manager says to an operator."""

from __future__ import annotations

from taskd.messages.values import Message, Name, Report


class Answer(Message, frozen=True):
    """To whoever made `request`."""

    request: Name
    ok: bool
    text: Report


ToOperator = Answer
