"""Container images without a registry: an OCI archive made of one static busybox.

Source: OCI image-spec v1.1, image-layout.md, config.md, manifest.md.
"""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

# What the tests and their containers call; busybox decides by the name it is called with.
APPLETS = tuple(
    "sh cat chroot cp cut date dd echo env false grep head httpd id ip kill ln ls mkdir mv nc nproc ping ps rm sed seq "  # noqa: SIM905
    "sha256sum sleep sort stat tail test touch tr true wc wget yes".split()
)


def _layer(busybox: bytes) -> bytes:
    """Return a tar with busybox and a link for each applet; the same bytes for the same busybox."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(busybox), 0o755
        tar.addfile(entry, io.BytesIO(busybox))
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return buffer.getvalue()


def write_archive(path: Path, *, name: str, busybox: Path, command: list[str]) -> None:
    """Write an OCI archive that ``ctr images import`` knows as ``name``, running ``command`` by default."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, media_type: str, **more: object) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data), **more}

    layer = _layer(busybox.read_bytes())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": command, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    kind = "application/vnd.oci.image."
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{kind}config.v1+json"),
        "layers": [blob(gzip.compress(layer, mtime=0), f"{kind}layer.v1.tar+gzip")],
    }
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {
        "schemaVersion": 2,
        "manifests": [blob(json.dumps(manifest).encode(), f"{kind}manifest.v1+json", annotations=names)],
    }
    blobs["index.json"] = json.dumps(index).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(path, mode="w") as tar:
        for member, data in sorted(blobs.items()):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
