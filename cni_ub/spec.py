"""What a CNI request must look like before anything else is asked of it.

The shim and the engine both judge requests with this module, so that a malformed one gets the same answer on
either way in. It is on the start-up path of every call, so ``json`` is imported only where a document is really parsed.

Source: containernetworking/cni SPEC.md 1.1.0, sections 2 to 4; reference/cni.md sections 1.2 to 1.4 and 1.7.
"""

from _json import encode_basestring_ascii as _quoted  # json itself takes 6 ms to import

TYPE_CHECKING = False  # typing's own, without its import
if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
LATEST = VERSIONS[-1]

INCOMPATIBLE_VERSION = 1
INVALID_ENVIRONMENT = 4
DECODING_FAILURE = 6
INVALID_CONFIG = 7
TRY_AGAIN = 11
INTERNAL = 999

_REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
}
_SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_NAME_CHARACTERS = _ALNUM | frozenset("_.-")
_IFNAME_BYTES = 15  # IFNAMSIZ without the NUL
_NAME_LENGTH = 180  # it becomes part of a file name, which ends at 255 bytes
_SYSCTL_NAMES = ("all", "default")  # the folders of /proc/sys/net/ipv4/conf that belong to no interface
_MAX_DEPTH = 100  # lists and objects in one another; no configuration has ten


class Refused(Exception):
    """The request is malformed; the arguments are what the CNI error object says."""

    def __init__(self, code: int, message: str, details: str = "", version: str = LATEST) -> None:
        super().__init__(message)
        self.code, self.message, self.details, self.version = code, message, details, version

    def document(self) -> bytes:
        return failure(self.code, self.message, self.details, self.version)


def failure(code: int, message: str, details: str = "", version: str = LATEST) -> bytes:
    """Return the CNI error object as one line of JSON."""
    more = f', "details": {_quoted(details)}' if details else ""
    return f'{{"cniVersion": {_quoted(version)}, "code": {code}, "msg": {_quoted(message)}{more}}}\n'.encode()


def versions(stdin: bytes) -> bytes:
    """Return the answer to VERSION. It echoes the version asked with; nonsense on stdin is no reason to fail."""
    _, _, rest = stdin.partition(b'"cniVersion"')
    asked = rest.lstrip(b" \t\r\n:").partition(b'"')[2].partition(b'"')[0].decode("ascii", "replace")
    known = asked if asked and set(asked) <= set("0123456789.") else LATEST
    supported = ", ".join(f'"{version}"' for version in VERSIONS)
    return f'{{"cniVersion": "{known}", "supportedVersions": [{supported}]}}\n'.encode()


def check_environment(environ: "Mapping[str, str]") -> str:
    """Return the verb. A variable that is set but empty counts as missing: runtimes send all of them always.

    Raises:
        Refused: the verb is unknown, or variables are missing or invalid; all of them are named.
    """
    command = environ.get("CNI_COMMAND", "")
    if command not in _REQUIRED:
        raise Refused(INVALID_ENVIRONMENT, f"unknown CNI_COMMAND: {command!r}")
    if garbled := [name for name in environ if name.startswith("CNI_") and not _is_unicode(environ[name])]:
        raise Refused(INVALID_ENVIRONMENT, f"not UTF-8: {', '.join(garbled)}")
    missing = [name for name in _REQUIRED[command] if not environ.get(name)]
    if missing:
        # CNI_PATH is optional in the specification and required by libcni's skeleton: it is asked for where a
        # delegate needs it, and named here so that the caller learns everything at once.
        if "CNI_PATH" not in missing and command != "STATUS" and not environ.get("CNI_PATH"):
            missing.append("CNI_PATH")
        raise Refused(INVALID_ENVIRONMENT, f"required env variables [{','.join(missing)}] missing")
    invalid = list(_invalid(environ)) if "CNI_CONTAINERID" in _REQUIRED[command] else []
    if invalid:
        raise Refused(INVALID_ENVIRONMENT, "; ".join(invalid))
    return command


def _invalid(environ: "Mapping[str, str]") -> list[str]:
    found = []
    container, ifname = environ["CNI_CONTAINERID"], environ["CNI_IFNAME"]
    if not _is_name(container):
        found.append(f"invalid CNI_CONTAINERID {container!r}: letters, digits, '_', '.', '-', a letter or digit first")
    if why := bad_ifname(ifname):
        found.append(f"invalid CNI_IFNAME {ifname!r}: {why}")
    return found


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _NAME_LENGTH and text[0] in _ALNUM and _NAME_CHARACTERS.issuperset(text)


def bad_ifname(name: str) -> str:
    """Say what is wrong with an interface name; nothing if it is good.

    Source: Linux net/core/dev.c, dev_valid_name() and __dev_change_net_namespace(), where ``%`` asks for a number;
    net/ipv4/devinet.c, devinet_sysctl_register().
    """
    if not 0 < len(name.encode("utf-8", "surrogateescape")) <= _IFNAME_BYTES:
        return f"must be 1 to {_IFNAME_BYTES} bytes"
    if name in (".", ".."):
        return "must not be '.' or '..'"
    if name in _SYSCTL_NAMES:
        return "the kernel keeps 'all' and 'default' for itself"
    if any(c in "/:%" or c.isspace() for c in name):
        return "must not contain '/', ':', '%' or white space"
    return ""


def check_config(command: str, stdin: bytes) -> dict[str, object]:
    """Return the network configuration, with ``cniVersion`` and ``name`` known to be good.

    Raises:
        Refused: it is not a JSON object, its version is unknown or too old for the verb, or its name is missing.
    """
    try:
        config = parse_json(stdin)
    except ValueError as error:
        raise Refused(DECODING_FAILURE, f"cannot parse the network configuration: {error}") from None
    if not isinstance(config, dict):
        raise Refused(DECODING_FAILURE, f"the network configuration is a {type(config).__name__}, not an object")
    version = _version(config)
    config["cniVersion"] = version
    since = _SINCE.get(command, VERSIONS[0])
    if VERSIONS.index(version) < VERSIONS.index(since):
        message = f"config version does not allow {command}: it is {version}, {command} came with {since}"
        raise Refused(INCOMPATIBLE_VERSION, message, version=version)
    name = config.get("name")
    if not isinstance(name, str) or not name:
        raise Refused(INVALID_CONFIG, "missing network name", version=version)
    if not _is_name(name):
        raise Refused(INVALID_CONFIG, f"invalid network name {name!r}", version=version)
    return config


def parse_json(text: bytes) -> object:
    """Read a document that can be handed on: ``json`` alone also takes what neither JSON nor UTF-8 can say.

    Raises:
        ValueError: it is not JSON, or nested too deep.
    """
    import json

    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if why := _unsayable(document):
        raise ValueError(f"it holds {why}")
    return document


def _unsayable(value: object, depth: int = 0) -> str:
    """Say what in a document is no JSON for others; nothing if all is well."""
    if depth > _MAX_DEPTH:
        return f"more than {_MAX_DEPTH} lists and objects in one another"
    if isinstance(value, float):
        return "" if value - value == 0 else f"the number {value}"  # NaN, or beyond every float
    if isinstance(value, str):
        return "" if _is_unicode(value) else "half of a surrogate pair"
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((why for part in inner if (why := _unsayable(part, depth + 1))), "")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _version(config: dict[str, object]) -> str:
    """Find ``cniVersion`` as Go's decoder does, in any case; without one the format is that of 0.1.0."""
    found: object = ""
    for key in [key for key in config if key.lower() == "cniversion"]:
        found = config.pop(key)
    version = found or VERSIONS[0]
    if version not in VERSIONS:
        raise Refused(INCOMPATIBLE_VERSION, f"incompatible CNI version {version!r}", f"supported: {list(VERSIONS)}")
    return str(version)
