"""A pod with a memory volume, from the command line of a guest: made by containerd, ub-csi and nri-qos alone.

    python3 -m e2e.inside.memorypod given|ungiven ID CONTEXT VERB …     VERB …: of e2e.inside.mapped, on its folder

Publishes the volume for the pod, lets its container do what is said, and takes both away. ``ungiven``: without nri-qos,
so that nobody lets the container open the device. Ends with the code of the container's program.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

from e2e.inside import storage
from e2e.inside.cri import Runtime, import_images
from e2e.inside.pods import USR
from e2e.inside.programs import RESULTS, daemon

FOLDER = "/memory"
PAYLOAD = Path("/mnt/payload/e2e")


def main(gives: str, ident: str, context: str, verb: str, *arguments: str) -> int:
    RESULTS.mkdir(exist_ok=True)
    import_images()
    runtime, node, volume = Runtime(), storage.node(), storage.volume(ident, context)
    runtime.wait_until_ready()
    with daemon("nri-qos", env={"UB_ROOT": "/"}) if gives == "given" else nullcontext() as qos:
        if qos:
            qos.wait_for("synchronized with the runtime")
        pod = runtime.run_pod("memory", host_network=True)
        uid = pod.config.metadata.uid
        folder = node.publish(volume, uid)
        container = runtime.run_container(pod, mounts={**USR, PAYLOAD: "/e2e", folder: FOLDER})
        program = ("/usr/bin/python3", "-m", "e2e.inside.mapped", verb, FOLDER, *arguments)
        code, said = runtime.execute(container, *program)
        runtime.remove_all()
        node.unpublish(volume, uid)
    print(said, file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
