import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_qos import paths

BURSTABLE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"


@pytest.mark.parametrize(
    ("parent", "folder"),
    [
        ("kubepods-burstable-pod1_2.slice", BURSTABLE),
        (f"/{BURSTABLE}", BURSTABLE),
        ("/kubepods.slice/kubepods-pod7.slice", "kubepods.slice/kubepods-pod7.slice"),
        ("kubelet-kubepods-pod7.slice", "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod7.slice"),
        ("/kubepods/besteffort/pod1-2", "kubepods/besteffort/pod1-2"),
        ("/k8s.io", None),
        ("system.slice", None),
        ("kubepods-besteffort.slice", None),
        ("/kubepods", None),
        ("", None),
        ("/", None),
        ("/a/../b", None),
        ("a--b.slice", None),
    ],
)
def test_the_folder_of_a_pod(parent: str, folder: str | None) -> None:
    assert paths.of_pod(parent) == folder


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("kubepods-burstable-pod1_2.slice:cri-containerd:abc", f"{BURSTABLE}/cri-containerd-abc.scope"),
        ("kubepods-pod7.slice:crio:abc", "kubepods.slice/kubepods-pod7.slice/crio-abc.scope"),
        (":cri-containerd:abc", "system.slice/cri-containerd-abc.scope"),
        ("/kubepods/pod7/abc", "kubepods/pod7/abc"),
        ("", None),
        ("kubepods.slice:x:../../etc", None),
        ("/kubepods/../../etc", None),
    ],
)
def test_the_folder_of_a_container(path: str, folder: str | None) -> None:
    assert paths.of_container(path) == folder


@given(st.text("/.-:ab\0", max_size=12), st.sampled_from([paths.of_pod, paths.of_container]))
def test_no_folder_leads_out_of_the_hierarchy(text: str, of: object) -> None:
    assert callable(of)
    folder = of(text)
    assert folder is None or not folder.startswith("/")
    assert folder is None or ".." not in folder.split("/")
    assert folder is None or "\0" not in folder
