"""Write JSON schemas of the Kubernetes API, one per kind, for kubeconform; print their folder. In its folder
``definitions`` are the definitions of custom resources as an API server takes them.

They are made from the OpenAPI description in the Go module k8s.io/kubernetes, and from the definitions of custom
resources in the modules of those who define them; any Go module proxy has these.

usage: kubernetes_schemas.py VERSION      e.g. v1.34.1      Exit 3: there is no Go on this machine.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

CUSTOM = {  # module -> the definitions that our chart makes objects of
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/kubernetes-csi/external-snapshotter/client/v8@v8.4.0": (
        "config/crd/snapshot.storage.k8s.io_volumesnapshotclasses.yaml",
    ),
    "github.com/k8snetworkplumbingwg/network-attachment-definition-client@v1.7.7": ("artifacts/networks-crd.yaml",),
}
yaml.SafeLoader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)  # "=" is text, too


def main() -> int:
    if not shutil.which("go"):
        print("kubernetes_schemas: Go is not installed here", file=sys.stderr)
        return 3
    version = sys.argv[1]
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME", "/var/cache"))
    folder = cache / "ub-node-e2e" / "schemas" / f"{version}-{recipe}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_kubernetes(source_of(f"k8s.io/kubernetes@{version}") / "api/openapi-spec/swagger.json", folder)
        (folder / "definitions").mkdir(exist_ok=True)
        for module, files in CUSTOM.items():
            for file in files:
                write_custom(source_of(module) / file, folder)
        (folder / "done").touch()
    print(folder)
    return 0


def source_of(module: str) -> Path:
    command = ["go", "mod", "download", "-json", module]
    return Path(json.loads(subprocess.run(command, cwd="/", check=True, stdout=subprocess.PIPE).stdout)["Dir"])


def write_kubernetes(swagger: Path, folder: Path) -> None:
    definitions = json.loads(swagger.read_text(encoding="utf-8"))["definitions"]
    for definition in definitions.values():
        close(definition)
    text = json.dumps({"definitions": definitions})
    every = text.replace("#/definitions/", "definitions.json#/definitions/")
    (folder / "definitions.json").write_text(every, encoding="utf-8")
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            if name.endswith(f".{kind['version']}.{kind['kind']}"):
                schema = {"$ref": f"definitions.json#/definitions/{name}"}
                write(folder, kind["kind"], kind["group"], kind["version"], schema)


def write_custom(file: Path, folder: Path) -> None:
    definition = yaml.safe_load(file.read_text(encoding="utf-8"))
    (folder / "definitions" / f"{file.stem}.json").write_text(json.dumps(definition), encoding="utf-8")
    spec = definition["spec"]
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
        close(schema)
        write(folder, spec["names"]["kind"], spec["group"], version["name"], schema)


def close(schema: Any) -> None:
    """Refuse unknown fields, a typo among them, which the API server ignores."""
    if not isinstance(schema, dict):
        return
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        schema.clear()
        schema["type"] = ["string", "integer"]
    fields = schema.get("properties")
    if fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    for inner in (*(fields or {}).values(), schema.get("items"), schema.get("additionalProperties")):
        close(inner)


def write(folder: Path, kind: str, group: str, version: str, schema: Any) -> None:
    """Name the file as kubeconform looks for it."""
    name = "-".join(filter(None, (kind.lower(), group.split(".")[0], version)))
    (folder / f"{name}.json").write_text(json.dumps(schema), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
