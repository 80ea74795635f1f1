"""The API of a cluster, by HTTP: objects as the server has them, its warnings, and what an account may do."""

import contextlib
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPSConnection
from typing import Any
from urllib.parse import urlencode

Manifest = dict[str, Any]
CALL_S = 60.0
BUSY = 429
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """The server said no; the text is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What the server made of a request, and what it warned of."""

    body: Manifest
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Api:
    """A cluster as one user sees it. The server has the one certificate that is trusted, whatever its address."""

    host: str
    port: int
    certificate: str  # PEM
    token: str
    headers: Mapping[str, str] = field(default_factory=dict)
    resources: dict[str, dict[str, Manifest]] = field(default_factory=dict)  # group and version -> kind -> resource

    def acting_as(self, account: str) -> "Api":
        """Return the cluster as a service account (``NAMESPACE:NAME``) sees it."""
        return replace(self, headers={"Impersonate-User": f"system:serviceaccount:{account}"})

    def call(self, method: str, path: str, body: Manifest | None = None, *, kind: str = "application/json") -> Answer:
        """Carry out one request; a server that is busy, as it says, is asked again.

        Raises:
            Refused: the server answered with an error.
        """
        deadline = time.monotonic() + CALL_S
        while True:
            status, text, warnings = self._once(method, path, body, kind)
            if status != BUSY or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if status >= 400:
            raise Refused(status, _message(text))
        return Answer(json.loads(text) if text.startswith("{") else {"text": text}, warnings)

    def _once(self, method: str, path: str, body: Manifest | None, kind: str) -> tuple[int, str, tuple[str, ...]]:
        trust = ssl.create_default_context(cadata=self.certificate)
        trust.check_hostname = False
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, **self.headers}
        with contextlib.closing(HTTPSConnection(self.host, self.port, timeout=CALL_S, context=trust)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode(), tuple(response.headers.get_all("Warning") or ())

    def path(self, manifest: Manifest) -> str:
        """Return where an object is, or will be."""
        place = self.collection(manifest["apiVersion"], manifest["kind"], manifest["metadata"].get("namespace"))
        return f"{place}/{manifest['metadata']['name']}"

    def collection(self, version: str, kind: str, namespace: str | None = None) -> str:
        """Return where the objects of a kind are: those of one namespace, or all."""
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if kind not in self.resources.get(version, {}):
            every = self.call("GET", base).body["resources"]
            self.resources[version] = {one["kind"]: one for one in every if "/" not in one["name"]}
        resource = self.resources[version][kind]
        within = f"/namespaces/{namespace or 'default'}" if resource["namespaced"] and namespace else ""
        return f"{base}{within}/{resource['name']}"

    def served(self, group: str) -> set[str]:
        """Return the resources of a group that the server has, in any version; ``pods/exec`` is one, too."""
        if not group:
            versions = ["/api/v1"]
        else:
            found = self.call("GET", f"/apis/{group}").body["versions"]
            versions = [f"/apis/{version['groupVersion']}" for version in found]
        return {one["name"] for path in versions for one in self.call("GET", path).body["resources"]}

    def create(self, manifest: Manifest, *, keep: bool = True) -> Answer:
        """Create an object, strictly: a field that the server does not know is an error. Or only see if it could be."""
        query = {"fieldValidation": "Strict", **({} if keep else {"dryRun": "All"})}
        return self.call("POST", f"{self.path(manifest).rpartition('/')[0]}?{urlencode(query)}", manifest)

    def apply(self, manifest: Manifest) -> Answer:
        """Create or change an object, as ``kubectl apply --server-side`` does, strictly."""
        query = urlencode({"fieldValidation": "Strict", "fieldManager": "e2e", "force": "true"})
        return self.call("PATCH", f"{self.path(manifest)}?{query}", manifest, kind=APPLY)

    def delete(self, manifest: Manifest) -> Answer:
        return self.call("DELETE", self.path(manifest))

    def get(self, manifest: Manifest) -> Manifest | None:
        """Return an object as it is now, or None."""
        try:
            return self.call("GET", self.path(manifest)).body
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    def wait(self, manifest: Manifest, holds: Callable[[Manifest], bool], what: str, timeout_s: float = 60) -> Manifest:
        """Wait until an object is there and ``holds()`` of it; return it. Fail with ``what`` did not happen."""
        deadline = time.monotonic() + timeout_s
        while not ((now := self.get(manifest)) and holds(now)):
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}: {json.dumps(now)}"
            time.sleep(0.2)
        return now

    def wait_until_gone(self, manifest: Manifest, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while now := self.get(manifest):
            assert time.monotonic() < deadline, f"not gone within {timeout_s:.0f} s: {json.dumps(now)}"
            time.sleep(0.2)

    def may(
        self, account: str, verb: str, resource: str, *, group: str = "", namespace: str = "", name: str = ""
    ) -> bool:
        """Ask the server whether a service account (``NAMESPACE:NAME``) may do something."""
        kind, _, part = resource.partition("/")
        asked = {
            "verb": verb,
            "group": group,
            "resource": kind,
            "subresource": part,
            "namespace": namespace,
            "name": name,
        }
        where, _, _ = account.partition(":")
        spec = {
            "user": f"system:serviceaccount:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{where}", "system:authenticated"],
            "resourceAttributes": asked,
        }
        answer = self.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(answer.body["status"]["allowed"])


def namespace(name: str, **labels: str) -> Manifest:
    """Return a namespace; ``enforce="baseline"`` becomes the label of Pod Security."""
    security = {f"pod-security.kubernetes.io/{key}": value for key, value in labels.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": security}}


def names(manifests: Sequence[Manifest]) -> set[tuple[str, str]]:
    """Return kind and name of each."""
    return {(one["kind"], one["metadata"]["name"]) for one in manifests}


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError):
        return text[:500]
