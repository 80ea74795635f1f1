"""Makes packaging/chart/ub-node/values.schema.json: ``PYTHONPATH=.:proto python packaging/values_schema.py``.

What the configuration of a daemon may hold is taken from the code, so that Helm refuses what the daemon would refuse.
"""

import json
import sys
from typing import Any

import msgspec

from cni_ub.agent.config import AgentConfig
from csi_ub.config import Config as CsiConfig
from nri_qos.config import Config as NriConfig

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FILLED: Schema = {"type": "string", "minLength": 1}
SWITCH: Schema = {"type": "boolean"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
FOLDER: Schema = {"type": "string", "pattern": "^/[^ ]*[^/ ]$"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
VOLUME_NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,56}[a-z0-9])?$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
PORT_OR_NONE: Schema = PORT | {"minimum": 0}


def closed(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object with these keys and no others."""
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | {"required": list(required)} if required else schema


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


RESOURCES = closed(
    requests={"type": "object"},
    limits={"type": "object"},
    claims={"type": "array"},
)


def component(config: Schema, **own: Schema) -> Schema:
    """What the values of the three plugins have in common, and what each has of its own."""
    return closed(
        enabled=SWITCH, nodeSelector=LABELS, metricsPort=PORT_OR_NONE, config=config, resources=RESOURCES, **own
    )


def values(agent: Schema, csi: Schema, nri: Schema) -> Schema:
    storage_class = closed(
        ("name", "parameters"),
        name=NAME,
        parameters=LABELS,
        default=SWITCH,
        reclaimPolicy={"enum": ["Delete", "Retain"]},
    )
    selinux = closed(user=TEXT, role=TEXT, type=TEXT, level=TEXT)
    images = dict.fromkeys(("registrar", "livenessprobe", "provisioner", "resizer", "attacher", "snapshotter"), FILLED)
    return closed(
        image=closed(repository=FILLED, tag=TEXT, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
        imagePullSecrets=array(closed(name=FILLED)),
        kubeletDir=FOLDER,
        priorityClassName=TEXT,
        nodeSelector=LABELS,
        seLinuxOptions=selinux,
        tolerations=OBJECTS,
        maxUnavailable={"type": ["integer", "string"], "pattern": "^[1-9][0-9]?%$|^100%$", "minimum": 1},
        agent=component(agent, cniBinDir=FOLDER),
        csi=component(
            csi,
            driver={"enum": ["pod", "host"]},
            hostSystemd=SWITCH,
            sidecars=closed(resources=RESOURCES, **images),
            snapshots=SWITCH,
            controller=closed(
                enabled=SWITCH,
                groupSnapshots=SWITCH,
                replicas={"type": "integer", "minimum": 0},
                nodeSelector=LABELS,
                tolerations=OBJECTS,
                livenessPort=PORT,
            ),
            peerKeySecret=TEXT,
            livenessPort=PORT,
            registrarPort=PORT,
            storageClasses=array(storage_class),
            volumeAttributesClasses=array(closed(("name", "parameters"), name=NAME, parameters=LABELS)),
            snapshotClass=TEXT,
        ),
        nri=component(nri, dryRun=SWITCH, socketDir=FOLDER),
        networkAttachments=array(
            closed(("name",), name=NAME, namespace=TEXT, resource=TEXT, config={"type": "object"})
        ),
        monitoring=closed(
            serviceMonitor=SWITCH, rules=SWITCH, labels=LABELS, dashboards=SWITCH, dashboardLabels=LABELS
        ),
        cleanup=SWITCH,
        **{"global": {"type": "object"}},  # Helm gives it to every chart of a chart
    )


def configuration(kind: type, prefix: str) -> tuple[Schema, Schema]:
    """The schema of one daemon's configuration, and the definitions that it refers to, closed as the daemon is."""
    [root], parts = msgspec.json.schema_components([kind], ref_template=f"#/definitions/{prefix}.{{name}}")
    for part in parts.values():
        part.pop("description", None)
        if "properties" in part:
            part["additionalProperties"] = False
    return root, {f"{prefix}.{name}": part for name, part in sorted(parts.items())}


def schema() -> Schema:
    agent, agent_parts = configuration(AgentConfig, "agent")
    csi, csi_parts = configuration(CsiConfig, "csi")
    nri, nri_parts = configuration(NriConfig, "nri")
    csi_parts["csi.PoolConfig"]["properties"]["name"] = VOLUME_NAME  # the chart makes a volume of each pool
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart ub-node; made by packaging/values_schema.py",
        **values(agent, csi, nri),
        "definitions": agent_parts | csi_parts | nri_parts,
    }


def main() -> int:
    json.dump(schema(), sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
