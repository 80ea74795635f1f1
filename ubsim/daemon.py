"""The process behind some simulated nodes: ``python -m ubsim.daemon DIR NODE…``, started by ``ubnode sim up``.

It says ``ready`` on stdout once every node's doors are open, or one line why not and exits 1. SIGTERM ends it.
"""

import os
import selectors
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ubhost.errors import HostFault, UbError
from ubhost.kernel.netns import open_netns
from ubhost.roots import Roots
from ubsim import expansion, record
from ubsim.cables import LinkEvents
from ubsim.netdevs import Fabric
from ubsim.simulated_node import SimulatedNode

READY = "ready"


def main(argv: Sequence[str]) -> int:
    folder, names = Path(argv[0]), argv[1:]
    stop_r, stop_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(stop_w)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for whoever started us
    try:
        running = record.read(folder)
        if running is None:
            raise HostFault(f"{folder} has no super-node")
        with selectors.DefaultSelector() as doors, selectors.DefaultSelector() as links:
            nodes = _boot(folder, running, names, doors, links)
            # Whoever looks at a link waits while the kernel moves another: nobody must wait at a door for that.
            watch = threading.Thread(target=_serve, args=(links, stop_r), name="links")
            watch.start()
            _say(READY)
            _serve(doors, stop_r)
            watch.join()
            for node in nodes:
                node.close()
    except UbError as error:
        _say(str(error))
        return 1
    return 0


def _boot(
    folder: Path,
    running: record.Record,
    names: Sequence[str],
    doors: selectors.BaseSelector,
    links: selectors.BaseSelector,
) -> list[SimulatedNode]:
    super_node = expansion.load(folder / record.SCENARIO)
    fabric = Fabric(running.bridge)
    nodes = []
    for name in names:
        own = running.namespaces.get(name)
        netns = None if own is None else open_netns(own)
        roots = Roots(record.root_of(folder, name))
        nodes.append(SimulatedNode(super_node, name, roots, running.netdevs, netns, fabric, doors, links))
    events = LinkEvents()  # one for all: the kernel copies every notice to every listener

    def links_changed() -> None:
        names = events.names()
        for simulated in nodes:
            simulated.links_changed(names)

    links.register(events, selectors.EVENT_READ, links_changed)
    for simulated in nodes:
        simulated.open()
    return nodes


def _serve(selector: selectors.BaseSelector, stop: int) -> None:
    selector.register(stop, selectors.EVENT_READ, None)
    while True:
        for key, _ in selector.select():
            if key.fd == stop:
                return
            try:
                key.data()
            except (UbError, OSError) as error:  # one node's trouble is not the others'
                sys.stderr.write(f"{error}\n")


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
