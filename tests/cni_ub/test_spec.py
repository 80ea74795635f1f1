"""What is refused before anything else is asked, and how it is said. Source: reference/cni.md 1.2 to 1.4, 4 D."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_ub import spec

ENVIRON = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/n", "CNI_IFNAME": "net1", "CNI_PATH": "/p"}


def refusal(**changed: str) -> spec.Refused:
    with pytest.raises(spec.Refused) as caught:
        spec.check_environment({**ENVIRON, **changed})
    return caught.value


def bad_config(text: str | bytes, command: str = "ADD") -> spec.Refused:
    with pytest.raises(spec.Refused) as caught:
        spec.check_config(command, text.encode() if isinstance(text, str) else text)
    return caught.value


def test_all_missing_variables_are_named_at_once() -> None:
    refused = refusal(CNI_CONTAINERID="", CNI_NETNS="", CNI_IFNAME="", CNI_PATH="")
    assert refused.code == 4
    assert refused.message == "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing"


@pytest.mark.parametrize("command", ["", "add", "UPDATE"])
def test_an_unknown_verb_is_named(command: str) -> None:
    refused = refusal(CNI_COMMAND=command)
    assert (refused.code, refused.message) == (4, f"unknown CNI_COMMAND: {command!r}")


def test_del_needs_no_namespace_and_status_needs_nothing() -> None:
    assert spec.check_environment({**ENVIRON, "CNI_COMMAND": "DEL", "CNI_NETNS": ""}) == "DEL"
    assert spec.check_environment({"CNI_COMMAND": "STATUS", "CNI_CONTAINERID": ""}) == "STATUS"


def test_cni_path_is_optional_where_nothing_else_is_missing() -> None:
    assert spec.check_environment({**ENVIRON, "CNI_PATH": ""}) == "ADD"
    assert refusal(CNI_COMMAND="GC", CNI_PATH="").code == 4


@pytest.mark.parametrize(
    "ifname",
    [
        *("abcdefghijklmnop", "ééééééééé", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\u00a0b"),
        *("all", "default", "%d", "net%d", "a%", "%s", "%%"),
    ],
)
def test_bad_interface_names_are_refused(ifname: str) -> None:
    refused = refusal(CNI_IFNAME=ifname)
    assert refused.code == 4
    assert "CNI_IFNAME" in refused.message


@pytest.mark.parametrize(
    "ifname", ["abcdefghijklmno", "ééééééé", "uplink_p0", "net1.5", "a@b", "-x", "All", "default0"]
)
def test_names_that_the_kernel_takes_are_taken(ifname: str) -> None:
    assert spec.check_environment({**ENVIRON, "CNI_IFNAME": ifname}) == "ADD"


@pytest.mark.parametrize("name", [*ENVIRON, "CNI_ARGS", "CNI_OF_TOMORROW"])
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_a_variable_that_is_not_utf8_is_named(command: str, name: str) -> None:
    refused = refusal(**{"CNI_COMMAND": command, name: "a\udcff"})
    assert (refused.code, name in refused.message) == (4, True)
    json.loads(refused.document())


def test_other_variables_may_hold_anything() -> None:
    assert spec.check_environment({**ENVIRON, "TRACEPARENT": "\udcff", "HOME": "\udcff"}) == "ADD"


@pytest.mark.parametrize("container", ["../x", "-a", "_a", "a/b", "a b", "é", "x" * 181])
def test_bad_container_ids_are_refused(container: str) -> None:
    refused = refusal(CNI_CONTAINERID=container, CNI_IFNAME="..")
    assert refused.code == 4
    assert "CNI_CONTAINERID" in refused.message
    assert "CNI_IFNAME" in refused.message


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[]", '"text"', "null", "[" * 100000, b"\xff\xfe"])
def test_what_is_not_a_json_object_is_a_decoding_failure(text: str | bytes) -> None:
    assert bad_config(text).code == 6


@pytest.mark.parametrize(
    "value",
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"[{}, [-1e999]]", b'{"a": NaN}'),
        *(b'"\\ud800"', b'["\\udc00"]', b'{"\\udbff": 1}', b'"\xed\xa0\x80"', b'"\xff"'),
        *(b"[" * 150 + b"]" * 150, b'{"a":' * 900 + b"1" + b"}" * 900, b"9" * 5000),
    ],
)
def test_what_python_reads_and_others_do_not_is_a_decoding_failure(value: bytes) -> None:
    assert bad_config(b'{"cniVersion": "1.1.0", "name": "a", "extra": ' + value + b"}").code == 6


@pytest.mark.parametrize(
    "value", [b'"\\ud83d\\ude00"', '"\U0001f600"'.encode(), b"1e300", b"[" * 60 + b"]" * 60, b"9" * 400]
)
def test_what_others_read_too_is_taken(value: bytes) -> None:
    assert spec.check_config("ADD", b'{"cniVersion": "1.1.0", "name": "a", "extra": ' + value + b"}")["name"] == "a"


def test_the_last_of_two_equal_keys_counts() -> None:
    text = b'{"cniVersion": "9.9.9", "name": "a", "cniVersion": "1.0.0", "name": "b"}'
    assert spec.check_config("ADD", text) == {"cniVersion": "1.0.0", "name": "b"}


@pytest.mark.parametrize("version", ["9.9.9", "1.2.0", "0.3", 1, ["1.0.0"]])
def test_unknown_versions_are_refused_with_the_known_ones(version: object) -> None:
    refused = bad_config(json.dumps({"cniVersion": version, "name": "a"}))
    assert refused.code == 1
    assert "1.1.0" in refused.details


def test_without_a_version_the_format_is_the_oldest() -> None:
    assert spec.check_config("ADD", b'{"name": "a"}')["cniVersion"] == "0.1.0"


def test_the_version_key_is_found_in_any_case() -> None:
    assert spec.check_config("ADD", b'{"CNIVersion": "1.0.0", "name": "a"}')["cniVersion"] == "1.0.0"


@pytest.mark.parametrize(("command", "version"), [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "0.4.0")])
def test_a_verb_younger_than_the_configuration_is_refused(command: str, version: str) -> None:
    refused = bad_config(json.dumps({"cniVersion": version, "name": "a"}), command)
    assert (refused.code, refused.version) == (1, version)


@pytest.mark.parametrize("name", [None, "", 5, "a/b", "../a", "é"])
def test_a_network_must_have_a_name(name: object) -> None:
    assert bad_config(json.dumps({"cniVersion": "1.0.0", "name": name})).code == 7


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (b"", "1.1.0"),
        (b'{"cniVersion":"0.4.0"}', "0.4.0"),
        (b'{"name": 1, "cniVersion" : "1.0.0"}', "1.0.0"),
        (b"nonsense", "1.1.0"),
        (b'{"cniVersion":"\\"}', "1.1.0"),
    ],
)
def test_version_echoes_what_it_was_asked_with(stdin: bytes, version: str) -> None:
    answer = json.loads(spec.versions(stdin))
    assert answer == {"cniVersion": version, "supportedVersions": list(spec.VERSIONS)}


@given(st.binary(max_size=60))
def test_version_answers_whatever_is_on_stdin(stdin: bytes) -> None:
    assert json.loads(spec.versions(stdin))["supportedVersions"] == list(spec.VERSIONS)
    assert json.loads(spec.versions(b'{"cniVersion":"' + stdin))["supportedVersions"] == list(spec.VERSIONS)


@given(st.text(), st.text())
def test_a_failure_is_the_json_that_json_would_write(message: str, details: str) -> None:
    wanted = {"cniVersion": "1.0.0", "code": 7, "msg": message} | ({"details": details} if details else {})
    assert spec.failure(7, message, details, "1.0.0") == json.dumps(wanted).encode() + b"\n"
