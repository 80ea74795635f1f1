"""Pods from the command line of a guest, for tests outside that do something to the machine while they run.

    python3 -m e2e.inside.pods run NAME [KEY=VALUE…] [-- COMMAND…]    annotations; one container, with the node's /usr
    python3 -m e2e.inside.pods remove NAME

``run`` prints where the container is: {"sandbox": ID, "uid": UID, "pid": PID, "cgroup": FOLDER}.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from e2e.inside.cri import Resources, Runtime, import_images
from e2e.inside.programs import RESULTS

USR = {Path("/usr"): "/usr", Path("/usr/lib"): "/lib", Path("/usr/lib64"): "/lib64"}
RECORDS = RESULTS / "pods"  # NAME.json for each


def run(name: str, *words: str) -> None:
    cut = words.index("--") if "--" in words else len(words)
    annotations = dict(word.split("=", 1) for word in words[:cut])
    resources = Resources(cpu_request_m=100)
    import_images()
    runtime = Runtime()
    runtime.wait_until_ready()
    pod = runtime.run_pod(name, annotations=annotations, resources=resources, host_network=True)
    made = runtime.run_container(pod, *words[cut + 1 :], resources=resources, mounts=USR)
    uid = pod.config.metadata.uid
    text = json.dumps({"sandbox": pod.id, "uid": uid, "pid": made.pid, "cgroup": str(made.cgroup)})
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{name}.json").write_text(text)
    print(text)


def remove(name: str) -> None:
    record = RECORDS / f"{name}.json"
    Runtime().forget_pod(json.loads(record.read_text())["sandbox"])
    record.unlink()


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {"run": run, "remove": remove}
    verbs[verb](*arguments)
