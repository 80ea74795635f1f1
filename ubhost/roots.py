"""Where things lie on a host: every path below one root.

The root is ``UB_ROOT`` (default ``/``), so that one machine can carry many simulated hosts. Network
namespaces, links and mounts are always the real kernel's, whatever the root.

Source: design section 3.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ubhost.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of one host. Nothing is created here."""

    root: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> "Roots":
        """Return the host of ``UB_ROOT``.

        Raises:
            InvalidRequest: there is no such folder: work in it would look like that on a host without anything.
        """
        root = Path(environ.get("UB_ROOT") or "/")
        if not root.is_dir():
            raise InvalidRequest(f"UB_ROOT {root} is not a folder")
        return cls(root)

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def run(self) -> Path:
        """Ours on tmpfs: dies with the kernel state it describes."""
        return self.root / "run" / "ub-node"

    @property
    def state(self) -> Path:
        """Ours on disk: survives a reboot."""
        return self.root / "var" / "lib" / "ub-node"

    @property
    def agent_socket(self) -> Path:
        return self.run / "agent.sock"

    @property
    def ubse_socket(self) -> Path:
        return self.root / "run" / "ubse" / "ubse.sock"

    @property
    def simulator(self) -> Path:
        """Present on a simulated host only: ``kernel.sock`` answers for the ubcore driver."""
        return self.root / "run" / "ubsim"
