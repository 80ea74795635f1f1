"""DeviceInfo files: what Multus and its kin may tell others about a device that kubelet gave to a pod.

One file for each id of each resource. The specification knows no UB device: a device with a PCI address is described
as ``pci``, with the URMA or RDMA device as ``rdma-device``; any other has type ``ub`` and a map of its own, of which
readers that do not know it keep type and version.

Source: k8snetworkplumbingwg/device-info-spec SPEC.md 1.1.0; reference/cni.md 7.2.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cni_ub.agent import watchedfolder
from ubhost.provider import Device
from ubhost.roots import Roots

VERSION = "1.1.0"
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def describe(device: Device) -> dict[str, Any]:
    """Return the content of a device's file."""
    if device.address and _PCI.fullmatch(device.address):
        pci = {"pci-address": device.address, "rdma-device": device.members[0] if device.members else device.id}
        return {"type": "pci", "version": VERSION, "pci": pci}
    ub: dict[str, Any] = {"device-id": device.id, "urma-devices": list(device.members)}
    if device.address:
        ub["ub-address"] = device.address
    if device.eids:
        ub["eid"] = str(device.eids[0].eid)
    return {"type": "ub", "version": VERSION, "ub": ub}


def file_name(resource: str, id_: str) -> str:
    return f"{resource}-{id_}-device.json".replace("/", "-")


class DeviceInfoFiles:
    """The files of one host, for as long as the agent runs: the specification wants them gone afterwards."""

    def __init__(self, roots: Roots, resources: Iterable[str]) -> None:
        self.folder: Path = roots.root / "var" / "run" / "k8s.cni.cncf.io" / "devinfo" / "dp"
        self._resources = tuple(resources)

    def update(self, wanted: Mapping[tuple[str, str], Device]) -> list[Path]:
        """Make the files say what the devices, by resource and id, are now; return those that were removed.

        Raises:
            HostFault: one of them cannot be written.
        """
        files = {file_name(*key): describe(device) for key, device in wanted.items()}
        if files:
            watchedfolder.make(self.folder)
        for name, content in files.items():
            watchedfolder.put(self.folder / name, json.dumps(content).encode() + b"\n")
        gone = [self.folder / name for name in sorted(self._ours() - files.keys())]
        return [path for path in gone if watchedfolder.remove(path)]

    def remove(self) -> list[Path]:
        return self.update({})

    def _ours(self) -> set[str]:
        """Return the files of our resources, those of a killed agent too.

        ``vendor-ub-x-urma_1-device.json`` may be somebody's ``vendor/ub-x``, so an id that holds a hyphen is not taken
        for one of ours.
        """
        try:
            present = [entry.name for entry in self.folder.iterdir()]
        except OSError:
            return set()
        patterns = [re.escape(file_name(resource, "@")).replace("@", "[^-]+") for resource in self._resources]
        return {name for name in present if any(re.fullmatch(pattern, name) for pattern in patterns)}
