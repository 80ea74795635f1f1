"""Delegation to an IPAM plugin: find it, run it, judge what it says.

The plugin gets the environment and the whole configuration of our own call. Peers differ in what they can do, so
verbs that came late are tried only where VERSION says that the plugin knows them, and a plugin older than the
configuration is spoken to in the newest version it has.

Source: containernetworking/cni SPEC.md 1.1.0, section 4; reference/cni.md sections 1.5, 4 (H10, H13, H14, H38).
"""

import contextlib
import errno
import json
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cni_ub import results
from cni_ub.errors import DelegateFailed, DelegateMissing, Undecodable
from cni_ub.spec import INCOMPATIBLE_VERSION, INVALID_CONFIG, INVALID_ENVIRONMENT, TRY_AGAIN, VERSIONS, parse_json
from ubhost.kernel.parent import end_with

PATIENCE = {"ADD": 60.0, "DEL": 60.0, "CHECK": 20.0, "GC": 20.0, "STATUS": 5.0, "VERSION": 5.0}  # seconds
SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
MAX_ANSWER = 1 << 20  # bytes

_known_versions: dict[tuple[str, int, int], tuple[str, ...]] = {}  # by path, change time and size of the executable


@dataclass(frozen=True, slots=True)
class Ipam:
    """One IPAM plugin in the setting of one call.

    ``dies_with_us``: the kernel kills it when this thread dies. It is for the process that lives for one call; in the
    agent, which has threads, the kernel's notice is unsafe to ask for, and its service manager kills what it leaves.
    """

    type: str
    config: Mapping[str, Any]
    environ: Mapping[str, str]
    dies_with_us: bool = False

    def require(self) -> None:
        """Refuse a plugin that is not there, as long as nothing is changed.

        Raises:
            DelegateMissing: it is not in CNI_PATH, or not a program.
        """
        path = self._find()
        if not os.access(path, os.X_OK):
            raise DelegateMissing(f"IPAM plugin {path} is not executable", INVALID_CONFIG)

    def is_there(self) -> bool:
        try:
            self.require()
        except DelegateMissing:
            return False
        return True

    def start_add(self) -> "Running":
        """Start ADD and return at once; what takes time in the kernel can be done meanwhile."""
        return self._start("ADD")

    def finish_add(self, running: "Running") -> results.Result:
        """Wait for ADD and return what it gave.

        Raises:
            DelegateFailed: the plugin failed, or it gave no address.
            Undecodable: its answer is not a result.
        """
        try:
            document = running.wait()
        except DelegateFailed as error:
            if error.code != INCOMPATIBLE_VERSION or not self._is_older():
                raise
            document = self._start("ADD").wait()
        result = results.parse(document, self.version, f"the result of IPAM plugin {self.type}")
        if not result.ips:
            raise Undecodable(f"IPAM plugin {self.type} returned no IP address")
        return result

    def start_delete(self) -> "Running":
        return self._start("DEL")

    def finish_delete(self, running: "Running") -> None:
        """Wait until the addresses are released.

        Raises:
            DelegateFailed: they are not.
        """
        try:
            running.wait()
        except DelegateFailed as error:
            if error.code != INCOMPATIBLE_VERSION or not self._is_older():
                raise
            self._start("DEL").wait()

    def delete(self) -> None:
        self.finish_delete(self.start_delete())

    def forward(self, verb: str, **keys: Any) -> None:
        """Hand on CHECK, GC or STATUS; a plugin that does not know the verb has nothing to say.

        Raises:
            DelegateFailed: the plugin knows the verb and failed.
        """
        versions = self.supported()
        if SINCE[verb] not in versions:
            return
        try:
            self._start(verb, **keys).wait()
        except DelegateFailed as error:
            if not _means_unknown_verb(str(error)):
                raise

    def supported(self) -> tuple[str, ...]:
        """Return the versions that the plugin says it knows; asked once for each executable."""
        path = self._find()
        status = path.stat()
        key = (str(path), status.st_mtime_ns, status.st_size)
        if key not in _known_versions:
            said = self._start("VERSION").wait()
            versions = said.get("supportedVersions") if isinstance(said, dict) else None
            _known_versions[key] = tuple(v for v in versions if v in VERSIONS) if isinstance(versions, list) else ()
        return _known_versions[key]

    @property
    def version(self) -> str:
        """The version we speak with the plugin: the configuration's, or the newest below it that both know."""
        asked = str(self.config["cniVersion"])
        with contextlib.suppress(DelegateFailed, OSError):
            status = self._find().stat()
            known = _known_versions.get((str(self._find()), status.st_mtime_ns, status.st_size))
            if known and asked in VERSIONS and asked not in known:  # a damaged record may ask for anything
                below = [v for v in VERSIONS[: VERSIONS.index(asked)] if v in known]
                return below[-1] if below else asked
        return asked

    def _is_older(self) -> bool:
        """Learn the plugin's versions; whether another one than the configuration's is to be spoken with it."""
        self.supported()
        return self.version != str(self.config["cniVersion"])

    def _find(self) -> Path:
        folders = [folder for folder in self.environ.get("CNI_PATH", "").split(":") if folder]
        if not folders:
            why = f"CNI_PATH is missing; IPAM plugin {self.type} is looked for there"
            raise DelegateMissing(why, INVALID_ENVIRONMENT)
        for folder in folders:
            path = Path(folder, self.type)
            try:
                if stat.S_ISREG(path.stat().st_mode):
                    return path
            except OSError:
                continue
        raise DelegateMissing(f"no IPAM plugin {self.type} in CNI_PATH {':'.join(folders)}", INVALID_CONFIG)

    def _start(self, verb: str, **keys: Any) -> "Running":
        path = self._find()
        config = {**self.config, **keys, "cniVersion": self.version}
        environ = {**clean(self.environ), "CNI_COMMAND": verb}
        if environ.get("CNI_ARGS"):
            environ["CNI_ARGS"] = _tolerable(environ["CNI_ARGS"])
        with _as_file(json.dumps(config).encode()) as stdin:
            try:
                process = subprocess.Popen(
                    [path],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    env=environ,
                    start_new_session=True,
                    preexec_fn=partial(end_with, os.getpid(), signal.SIGKILL) if self.dies_with_us else None,
                )
            except OSError as error:
                raise DelegateMissing(f"IPAM plugin {path} cannot be run: {error.strerror}", INVALID_CONFIG) from error
        return Running(self.type, verb, process)


@dataclass(frozen=True, slots=True)
class Running:
    """A plugin at work."""

    type: str
    verb: str
    process: "subprocess.Popen[bytes]"

    def wait(self) -> object:
        """Return the document on stdout, ``None`` where there is none.

        Raises:
            DelegateFailed: it failed, or took too long and was killed.
            Undecodable: it succeeded and printed something that is not JSON.
        """
        try:
            stdout = _read_while_it_lives(self.process, PATIENCE[self.verb])
        except OSError as error:
            raise DelegateFailed(f"IPAM plugin {self.type} {self.verb} {error.strerror}", TRY_AGAIN) from None
        finally:
            self.kill()
        if self.process.returncode:
            raise _failure(self.type, self.verb, self.process.returncode, stdout)
        if not stdout.strip():
            return None
        try:
            return parse_json(stdout)
        except ValueError:
            raise Undecodable(f"IPAM plugin {self.type} {self.verb} printed {stdout[:200]!r}, not JSON") from None

    def kill(self) -> None:
        """End the plugin and what it left behind in its process group; who is to stay makes a session of its own."""
        if self.process.returncode is None:  # until it is reaped nobody else gets its number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def _read_while_it_lives(process: "subprocess.Popen[bytes]", patience: float) -> bytes:
    """Return what a process wrote until it ended. Whoever else holds its stdout open does not keep us waiting.

    Raises:
        TimeoutError: it did not end within ``patience`` seconds.
        OSError: it writes without end.
    """
    assert process.stdout
    stdout, ended = process.stdout.fileno(), os.pidfd_open(process.pid)
    os.set_blocking(stdout, False)
    poll = select.poll()
    poll.register(stdout, select.POLLIN)
    poll.register(ended, select.POLLIN)
    deadline = time.monotonic() + patience
    read = b""
    try:
        while (left := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            with contextlib.suppress(BlockingIOError):  # it is empty, and open
                chunk = os.read(stdout, MAX_ANSWER)  # all that is there: a pipe holds no more
                read += chunk
                if not chunk and ended not in ready:  # it was closed
                    poll.unregister(stdout)
            if ended in ready:
                return read
            if len(read) > MAX_ANSWER:
                raise OSError(errno.EMSGSIZE, f"printed more than {MAX_ANSWER} bytes")
        raise TimeoutError(errno.ETIMEDOUT, f"took more than {patience:g} s")
    finally:
        os.close(ended)


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[int]:
    """Hold ``content`` in a file that the plugin reads as its stdin, whenever it likes: nobody must write meanwhile."""
    fd = os.memfd_create("network-configuration")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the runtime's environment: without what a frozen executable adds for its own libraries."""
    kept = {key: value for key, value in environ.items() if not key.startswith(("_PYI_", "_MEIPASS"))}
    original = kept.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is not None:
        kept["LD_LIBRARY_PATH"] = original
    elif "_PYI_ARCHIVE_FILE" in environ or "_PYI_APPLICATION_HOME_DIR" in environ:
        kept.pop("LD_LIBRARY_PATH", None)
    return kept


def _tolerable(args: str) -> str:
    """Return CNI_ARGS as plugins built on libcni take them: they fail on a key they do not know, and on odd pairs."""
    pairs = [pair for pair in args.split(";") if pair.count("=") == 1 and not pair.startswith("IgnoreUnknown=")]
    return ";".join(["IgnoreUnknown=1", *pairs])


def _failure(type_: str, verb: str, returncode: int, stdout: bytes) -> DelegateFailed:
    try:
        said = json.loads(stdout)
        code, message, details = int(said["code"]), str(said["msg"]), str(said.get("details") or "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        words = stdout[:200].decode(errors="replace").strip()
        return DelegateFailed(f"IPAM plugin {type_} {verb} ended with {returncode}: {words or 'nothing on stdout'}")
    return DelegateFailed(f"IPAM plugin {type_} {verb}: {message}", code, details)


def _means_unknown_verb(message: str) -> bool:
    lower = message.lower()
    return "unknown cni_command" in lower or "not implemented" in lower
