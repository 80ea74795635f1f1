import pytest

from csi_ub.quantity import size_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1k", 1000),
        ("1Ki", 1024),
        ("512MiB", 512 << 20),
        ("4Gi", 4 << 30),
        ("5GB", 5 * 10**9),
        ("1T", 10**12),
        ("1TiB", 1 << 40),
    ],
)
def test_a_size_is_read_as_kubernetes_and_as_people_write_it(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    "text", ["", "x", "Mi", "-1", "1.5Gi", "1 Gi", "1K", "1KB", "1mi", "1Gib", "1" * 16, "1Gi\n", "٣Gi"]
)
def test_what_could_mean_two_things_or_none_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size such as"):
        size_of(text)
