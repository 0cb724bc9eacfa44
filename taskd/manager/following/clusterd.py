"""The manager's connection to ClusterD, if the job has one: made from the environment, opened once
this manager is in charge."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskd import settings
from taskd.core import commands as c
from taskd.manager.following.sources import Feed

if TYPE_CHECKING:
    from taskd.mindcluster.clusterd.client import Client

log = logging.getLogger("taskd.manager.clusterd")


class ClusterDConnection:
    """`client`: None if there is no ClusterD; then everything here does nothing."""

    def __init__(self, client: Client | None = None) -> None:
        self._client = client

    @property
    def descriptor(self) -> int:
        return -1 if self._client is None else self._client.descriptor

    def connect(self, command: c.ConnectAdvisor) -> None:
        if self._client is None:
            return
        try:
            self._client.start()
        except OSError as error:
            log.error("no connection to ClusterD: %s; check TASKD_CLUSTERD_CA, _CERT, _KEY", error)

    def report(self, command: c.TellAdvisor) -> None:
        if self._client is not None:
            self._client.send(command)

    def poll(self, feed: Feed, now: float) -> None:
        for event in self._client.happened() if self._client is not None else ():
            try:
                feed(event, now)
            except Exception:  # the remaining events are still handled
                log.exception("%s could not be handled; it is ignored", event)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def make(environ: Mapping[str, str], job_id: str) -> ClusterDConnection:
    """`job_id`: ClusterD's id of the job. Raises settings.BadSetting."""
    address = settings.clusterd_address(environ)
    if address is None:
        return ClusterDConnection()
    files = settings.clusterd_certificates(environ)
    try:
        from taskd.mindcluster.clusterd.client import Certificates, Client
    except ImportError as error:
        log.warning(
            "ClusterD at %s is not connected: %s; pip install grpcio protobuf, or"
            " TASKD_CLUSTERD=off",
            address,
            error,
        )
        return ClusterDConnection()
    return ClusterDConnection(
        Client(address, job_id, None if files is None else Certificates(*files))
    )
