"""A cluster whose API is played by a stand-in."""

from __future__ import annotations

import pytest

from taskd.kubernetes import access
from tests.kubernetes.api_stand_in import Cluster, kubeconfig
from tests.manager.conftest import start


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def environ(cluster, tmp_path):
    return {
        "TASKD_KUBERNETES": "on",
        "KUBECONFIG": str(kubeconfig(tmp_path / "kubeconfig", f"127.0.0.1:{cluster.port}")),
        "POD_NAME": "job-master-0",
        "TASKD_LOG_PATH": str(tmp_path / "log"),
    }


@pytest.fixture
def way(environ):
    return access.find(environ)
