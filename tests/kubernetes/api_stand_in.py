"""A stand-in for the API server of Kubernetes, written from its public interface: objects of any
kind with resource versions, conflicts, lists in pages, watches that end, and the rights of
examples/kubernetes/role*.yaml, enforced. ConfigMaps are those of kube-system but for
reset-config-JOB, all else is in one other namespace.

    python -m tests.kubernetes.api_stand_in ADDRESS:PORT

Lines on stdin: one JSON object each, which is put in place. What is asked goes to stdout.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
ROLES = ("role.yaml", "role-device-info.yaml", "role-standbys.yaml")
NAMESPACE, SYSTEM = "train", "kube-system"
Key = tuple[str, str, str]  # group, plural, name


def kubeconfig(at: Path, server: str) -> Path:
    """Write the file that KUBECONFIG names. `server`: ADDRESS:PORT."""
    context = {"cluster": "test", "user": "test", "namespace": NAMESPACE}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://{server}"}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": context}],
    }
    at.write_text(yaml.safe_dump(content))
    return at


class Cluster:
    """`asked`: verb, plural and name of each call."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.changed = threading.Condition()
        self.broken = 0  # the status of all answers, if any
        # namespace, group, resource and verb -> the names, None: all
        self.allowed: dict[tuple[str, str, str, str], set[str] | None] = {
            (document["metadata"].get("namespace", NAMESPACE), group, resource, verb): (
                set(rule["resourceNames"]) if "resourceNames" in rule else None
            )
            for role in ROLES
            for document in yaml.safe_load_all((FOLDER / role).read_text())
            if document["kind"] == "Role"
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        self.oldest = 0  # changes up to this version are forgotten
        self.history: list[tuple[int, str, Key, dict[str, Any]]] = []
        self._version = 0
        self._server = ThreadingHTTPServer(address, _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, group: str, plural: str, thing: dict[str, Any]) -> None:
        with self.changed:
            self._version += 1
            thing["metadata"]["resourceVersion"] = str(self._version)
            key = group, plural, thing["metadata"]["name"]
            kind = "MODIFIED" if key in self.objects else "ADDED"
            self.objects[key] = thing
            self.history.append((self._version, kind, key, copy.deepcopy(thing)))
            self.changed.notify_all()

    def delete(self, group: str, plural: str, name: str) -> None:
        with self.changed:
            self._version += 1
            thing = self.objects.pop((group, plural, name))
            thing["metadata"]["resourceVersion"] = str(self._version)
            self.history.append((self._version, "DELETED", (group, plural, name), thing))
            self.changed.notify_all()

    @property
    def version(self) -> int:
        return self._version

    def config_map(self, name: str, data: dict[str, str], **labels: str) -> None:
        labels = labels or {"mx-consumer-cim": "true"}
        self.put("", "configmaps", {"metadata": {"name": name, "labels": labels}, "data": data})

    def pod(
        self, name: str, group: str = "", labels: dict[str, str] | None = None, job: str = ""
    ) -> None:
        """`job`: of the AscendJob that owns it."""
        notes = {"scheduling.k8s.io/group-name": group} if group else {}
        metadata: dict[str, Any] = {"name": name, "labels": labels or {}, "annotations": notes}
        if job:
            owner = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": job}
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        self.put("", "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata})

    def pod_group(
        self, name: str, annotations: dict[str, str] | None = None, **labels: str
    ) -> None:
        marks = {key.replace("_", "-"): value for key, value in labels.items()}
        metadata = {"name": name, "labels": marks, "annotations": annotations or {}}
        self.put("scheduling.volcano.sh", "podgroups", {"metadata": metadata})

    def wait(self, what: str, condition: Any, seconds: float = 30.0) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, seconds):
                raise AssertionError(f"not in {seconds} s: {what}; asked: {self.asked}")

    def lease(self, name: str) -> dict[str, Any] | None:
        found = self.objects.get(("coordination.k8s.io", "leases", name))
        return None if found is None else found["spec"]


def _namespace(plural: str, name: str) -> str:
    of_system = plural == "configmaps" and not name.startswith("reset-config-")
    return SYSTEM if of_system else NAMESPACE


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def _where(self) -> tuple[str, str, str, dict[str, list[str]]]:
            url = urlsplit(self.path)
            parts = url.path.strip("/").split("/")
            # api/v1/... or apis/GROUP/VERSION/...
            group = "" if parts[0] == "api" else parts[1]
            rest = parts[2:] if parts[0] == "api" else parts[3:]
            assert rest[0] == "namespaces", self.path
            name = rest[3] if len(rest) > 3 else ""
            assert rest[1] == _namespace(rest[2], name), self.path
            return group, rest[2], name, parse_qs(url.query)

        def _answer(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _refuse(self, status: int, reason: str) -> None:
            self._answer(status, {"kind": "Status", "code": status, "reason": reason})

        def _begin(self, verb: str, group: str, plural: str, name: str) -> bool:
            with cluster.changed:
                cluster.asked.append((verb, plural, name))
                cluster.changed.notify_all()
            if cluster.broken:
                self._refuse(cluster.broken, "broken")
            elif not self._may(verb, group, plural, name):
                self._refuse(403, f"{verb} {plural}.{group} is not allowed")
            else:
                return True
            return False

        def _may(self, verb: str, group: str, plural: str, name: str) -> bool:
            right = _namespace(plural, name), group, plural, verb
            if right not in cluster.allowed:
                return False
            only = cluster.allowed[right]
            return only is None or name in only

        def do_GET(self) -> None:
            group, plural, name, query = self._where()
            watching = query.get("watch") == ["true"] or query.get("watch") == ["True"]
            verb = "get" if name else "watch" if watching else "list"
            if not self._begin(verb, group, plural, name):
                return
            if watching:
                self._watch(group, plural, query)
            elif not name:
                self._list(group, plural, query)
            elif (found := cluster.objects.get((group, plural, name))) is None:
                self._refuse(404, "NotFound")
            else:
                self._answer(200, found)

        def _list(self, group: str, plural: str, query: dict[str, list[str]]) -> None:
            with cluster.changed:
                chosen = [
                    thing
                    for key, thing in sorted(cluster.objects.items())
                    if key[:2] == (group, plural) and _chosen(thing, query)
                ]
                first = int(query.get("continue", ["0"])[0])
                end = first + int(query.get("limit", ["500"])[0])
                metadata = {"resourceVersion": str(cluster.version)}
                if end < len(chosen):
                    metadata["continue"] = str(end)
                self._answer(200, {"items": chosen[first:end], "metadata": metadata})

        def _watch(self, group: str, plural: str, query: dict[str, list[str]]) -> None:
            since = int(query["resourceVersion"][0])
            end = time.monotonic() + float(query["timeoutSeconds"][0])
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (left := end - time.monotonic()) > 0 and not cluster.broken:
                with cluster.changed:
                    if since < cluster.oldest:
                        gone = {"code": 410, "reason": "Expired", "message": "too old"}
                        self._say("ERROR", gone)
                        break
                    new = [each for each in cluster.history if each[0] > since]
                    if not new:
                        cluster.changed.wait(min(left, 1.0))
                        continue
                since = new[-1][0]
                for _, kind, key, found in new:
                    if key[:2] == (group, plural) and _chosen(found, query):
                        self._say(kind, found)
            self.wfile.write(b"0\r\n\r\n")

        def _say(self, kind: str, found: dict[str, Any]) -> None:
            line = json.dumps({"type": kind, "object": found}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()

        def _body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

        def do_POST(self) -> None:
            group, plural, _, _ = self._where()
            thing = self._body()
            name = thing["metadata"]["name"]
            if not self._begin("create", group, plural, name):
                return
            if (group, plural, name) in cluster.objects:
                self._refuse(409, "AlreadyExists")
                return
            cluster.put(group, plural, thing)
            self._answer(201, thing)

        def do_PUT(self) -> None:
            group, plural, name, _ = self._where()
            thing = self._body()
            if not self._begin("update", group, plural, name):
                return
            known = cluster.objects.get((group, plural, name))
            version = thing["metadata"].get("resourceVersion")
            if known is None:
                self._refuse(404, "NotFound")
            elif version not in (None, known["metadata"]["resourceVersion"]):
                self._refuse(409, "Conflict")
            else:
                cluster.put(group, plural, thing)
                self._answer(200, thing)

        def do_PATCH(self) -> None:
            group, plural, name, _ = self._where()
            patch = self._body()
            if not self._begin("patch", group, plural, name):
                return
            if self.headers["Content-Type"] != "application/merge-patch+json":
                self._refuse(415, "UnsupportedMediaType")
                return
            with cluster.changed:
                if (known := cluster.objects.get((group, plural, name))) is None:
                    self._refuse(404, "NotFound")
                    return
                version = patch.get("metadata", {}).pop("resourceVersion", None)
                if version not in (None, known["metadata"]["resourceVersion"]):
                    self._refuse(409, "Conflict")
                    return
                thing = copy.deepcopy(known)
                _merge(thing, patch)
                cluster.put(group, plural, thing)
            self._answer(200, thing)

    return Handler


def _merge(thing: dict[str, Any], patch: dict[str, Any]) -> None:
    """A merge patch: null removes."""
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(thing.setdefault(key, {}), value)
        elif value is None:
            thing.pop(key, None)
        else:
            thing[key] = value


def _chosen(thing: dict[str, Any], query: dict[str, list[str]]) -> bool:
    """Whether the selectors have it."""
    metadata = thing["metadata"]
    if "fieldSelector" in query:
        known = {
            "metadata.name": metadata["name"],
            "status.podIP": (thing.get("status") or {}).get("podIP"),
        }
        field, _, value = query["fieldSelector"][0].partition("=")
        return known.get(field) == value
    if "labelSelector" in query:
        name, _, value = query["labelSelector"][0].partition("=")
        return (metadata.get("labels") or {}).get(name) == value
    return True


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    cluster = Cluster((host, int(port)))
    print(cluster.port, flush=True)

    def tell() -> None:
        for told in itertools.count():
            with cluster.changed:
                while len(cluster.asked) <= told:
                    cluster.changed.wait()
                each = cluster.asked[told]
            print(json.dumps(each), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    for line in sys.stdin:
        group, plural, thing = json.loads(line)
        cluster.put(group, plural, thing)


if __name__ == "__main__":
    main()
