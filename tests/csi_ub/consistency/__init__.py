"""Is a strong volume strong? Histories of real operations on real mounts, judged by a checker that is tested too."""
