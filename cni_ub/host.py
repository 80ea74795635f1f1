"""What a call works with: the ledger, the provider, and the word to stop."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from cni_ub.errors import Interrupted
from ubhost.errors import NotFound, UbError
from ubhost.ledger import Ledger
from ubhost.provider import Device, Kind, Provider
from ubhost.roots import Roots


class Stop:
    """Whether a call should stop. It is looked at between steps, so that no step is interrupted in its middle.

    What takes long outside of us, a delegate, is ended at once.
    """

    def __init__(self) -> None:
        self._why = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def request(self, why: str) -> None:
        self._why = why
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def watch(self, process: "subprocess.Popen[bytes]") -> None:
        """End ``process`` too when the word comes; called before it is waited for."""
        self._processes = [known for known in self._processes if known.returncode is None] + [process]
        if self._why:
            self.request(self._why)

    def check(self) -> None:
        """Raise if we should stop.

        Raises:
            Interrupted: somebody asked for it.
        """
        if self._why:
            raise Interrupted(self._why)


@dataclass(frozen=True, slots=True)
class Host:
    """One host, for one call or for many.

    ``choose`` finds the provider. ``devices_of`` tells the device ids that kubelet gave to a pod (namespace, name); it
    is there in the agent only.
    """

    roots: Roots
    ledger: Ledger
    choose: Callable[[], Provider]
    devices_of: Callable[[str, str], tuple[str, ...]] | None = None
    is_short_lived: bool = False
    stop: Stop = field(default_factory=Stop)

    def provider(self) -> Provider:
        """Return the provider.

        Raises:
            NotFound: this host has none of the devices that we can give.
        """
        try:
            return self.choose()
        except UbError as error:
            raise NotFound(f"no UB device can be given out: {error}") from error

    def provider_or_absent(self) -> Provider:
        """Return the provider; if there is none, one that has no devices and fails when it is needed."""
        try:
            return self.provider()
        except NotFound as error:
            return Absent(error)


class Absent:
    """A driver that is not there. A release needs it only where the pod lives on and still has the device."""

    kind = Kind.UBCORE

    def __init__(self, error: NotFound) -> None:
        self._error = error

    def devices(self) -> tuple[Device, ...]:
        return ()

    def device(self, name: str) -> Device:
        raise self._error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error
