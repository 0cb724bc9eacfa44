"""Do the jobs of examples/kubernetes fit the definitions that their operators publish? `make crds`
asks, outside CI: it takes Go and its module proxy. The exit status is 1 if one does not, and what
is wrong is named, a field that the operator does not know too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import yaml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "kubernetes"
# file -> the module at a version, and where its definitions are; no Go module has AscendJob's
PUBLISHED = {
    "jobset.yaml": ("sigs.k8s.io/jobset@v0.10.1", "config/components/crd/bases"),
    "trainjob.yaml": ("github.com/kubeflow/trainer/v2@v2.0.0", "manifests/base/crds"),
    "pytorchjob.yaml": ("github.com/kubeflow/training-operator@v1.8.1", "manifests/base/crds"),
}


def definitions(module: str, folder: str) -> dict[tuple[str, str], Any]:
    """(apiVersion, kind) -> the schema of its objects. Raises RuntimeError."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "go.mod").write_text("module examples\n")
        command = ["go", "mod", "download", "-json", module]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-300:]}")
    found = {}
    for path in Path(json.loads(done.stdout)["Dir"], folder).glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        for version in crd["spec"]["versions"] if crd.get("spec") else ():
            key = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
            found[key] = closed(version["schema"]["openAPIV3Schema"])
    return found


def closed(schema: Any) -> Any:
    """The schema, in which fields that it does not name are refused, as `kubectl` refuses them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    open_ = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_:
        made["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


def main() -> int:
    wrong, checked = [], 0
    for name, published in PUBLISHED.items():
        known = definitions(*published)
        for document in yaml.safe_load_all((EXAMPLES / name).read_text()):
            schema = known.get((document["apiVersion"], document["kind"]))
            if schema is None:
                continue  # a Service or a role: tests/docs/test_kubernetes.py
            checked += 1
            # the server's own fields: metadata is not in a definition
            for meta in (schema["properties"], schema["properties"].get("spec", {})):
                meta.get("metadata", {}).pop("additionalProperties", None)
            for error in jsonschema.Draft7Validator(schema).iter_errors(document):
                at = ".".join(map(str, error.absolute_path))
                wrong.append(f"{name}, {document['kind']}, {at}: {error.message[:200]}")
    print("\n".join(wrong) or f"{checked} objects are what their operators take")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
