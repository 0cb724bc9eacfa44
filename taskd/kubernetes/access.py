"""Access to the API: through the pod's service account, or the file that KUBECONFIG names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from taskd import settings
from taskd.kubernetes.objects import Object

NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MERGE = "application/merge-patch+json"
CONNECT, READ = 3.0, 5.0  # seconds, for one call
# what the client raises over an answer, or a file, that is not what it should be
BROKEN = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


class NotReachable(Exception):
    """This process cannot ask the API."""


@dataclass(frozen=True)
class Access:
    api: Any  # kubernetes.client.ApiClient
    namespace: str
    pod: str  # this pod's name

    def get(self, wanted: Object) -> dict[str, Any]:
        """One object. Raises ValueError, and what the client raises."""
        call = self._call(wanted)
        answer = call(name=wanted.name, _preload_content=False, _request_timeout=(CONNECT, READ))
        found = json.loads(answer.data)
        if not isinstance(found, dict):
            raise ValueError(f"{wanted} is {type(found).__name__}, not an object")
        return found

    def _call(self, wanted: Object) -> Any:
        if not wanted.group:
            core: Any = client.CoreV1Api(self.api)
            read = {
                "pods": core.read_namespaced_pod,
                "configmaps": core.read_namespaced_config_map,
            }[wanted.plural]
            return lambda **more: read(namespace=self.namespace, **more)
        custom = client.CustomObjectsApi(self.api)
        return lambda **more: custom.get_namespaced_custom_object(
            wanted.group, wanted.version, self.namespace, wanted.plural, **more
        )

    def lister(self, wanted: Object) -> tuple[Any, tuple[str, ...]]:
        """The call that lists objects of that kind, and its positional arguments."""
        if not wanted.group:
            return client.CoreV1Api(self.api).list_namespaced_pod, (self.namespace,)
        return client.CustomObjectsApi(self.api).list_namespaced_custom_object, (
            wanted.group,
            wanted.version,
            self.namespace,
            wanted.plural,
        )


def find(environ: Mapping[str, str]) -> Access:
    """Raises NotReachable."""
    made = client.Configuration()
    try:
        if file := environ.get("KUBECONFIG"):
            config.load_kube_config(file, client_configuration=made)
            _, active = config.list_kube_config_contexts(file)
            namespace = active["context"].get("namespace", "default")
        else:
            config.load_incluster_config(client_configuration=made)
            namespace = NAMESPACE.read_text().strip()
    except (config.ConfigException, OSError, yaml.YAMLError, *BROKEN) as error:
        raise NotReachable(
            f"{error}; the pod needs a service account with its token mounted"
            " (automountServiceAccountToken), or KUBECONFIG"
        ) from None
    made.retries = False  # ours are slower
    return Access(client.ApiClient(made), namespace, settings.pod_name(environ))


def describe(error: Exception) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, client.ApiException) and error.status:
        rights = "; the rights are in examples/kubernetes: role.yaml, role-device-info.yaml"
        return f"{error.status} {error.reason}{rights if error.status == 403 else ''}"
    return f"{type(error).__name__}: {error}"[:200]
