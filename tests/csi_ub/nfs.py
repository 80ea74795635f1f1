"""Stand-ins of nfs-utils and of what a kernel tells of itself. exportfs refuses what exportfs(8) refuses."""

from pathlib import Path

EXPORTFS = r"""#!/usr/bin/env -S python3 -IS
import pathlib, re, sys
table = pathlib.Path("{table}")
known = dict(line.split("\t", 1) for line in table.read_text().splitlines()) if table.exists() else {{}}
*switches, place = sys.argv[1:]
match = re.fullmatch(r"\[([0-9a-f:]+)\]/128:(/.*)|([0-9.]+)/32:(/.*)", place)
if not match:
    sys.exit(f"exportfs: invalid exporting option or host: {{place}}")
client = f"{{match[1]}}/128" if match[1] else f"{{match[3]}}/32"
path = match[2] or match[4]
key = path.replace(" ", r"\040") + " " + client
if switches == ["-u"]:
    if known.pop(key, None) is None:
        sys.exit(f"exportfs: Could not find '{{place}}' to unexport.")
elif switches[:1] == ["-o"] and len(switches) == 2:
    if not pathlib.Path(path).is_dir():
        sys.exit(f"exportfs: Failed to stat {{path}}: No such file or directory")
    known[key] = switches[1]
else:
    sys.exit("exportfs: usage")
table.write_text("".join(f"{{key}}\t{{options}}\n" for key, options in known.items()))
table.with_name("etab").write_text(
    "".join("{{}}\t{{}}({{}})\n".format(*key.split(" "), options) for key, options in known.items())
)
"""
STARTED = """#!/bin/sh
echo "$0 $*" >>{proc}/started
case $0 in *rpc.nfsd) echo 8 >{proc}/fs/nfsd/threads;; esac
"""
FILE_SYSTEMS = "nodev\tsysfs\n\text4\nnodev\tnfs4\nnodev\tnfsd\n"


def stand_in(folder: Path) -> Path:
    """Make the programs, and a ``proc`` beside them; return the folder for PATH. ``etab`` is what is exported."""
    programs, proc = folder / "bin", folder / "proc"
    (proc / "fs/nfsd").mkdir(parents=True)
    (proc / "fs/nfsd/threads").write_text("0\n")
    (proc / "filesystems").write_text(FILE_SYSTEMS)
    programs.mkdir()
    scripts = {"exportfs": EXPORTFS.format(table=folder / "known")}
    scripts |= dict.fromkeys(("rpc.nfsd", "rpc.mountd", "nfsdcld"), STARTED.format(proc=proc))
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs
