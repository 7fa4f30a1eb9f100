"""Files that are written fast here and carried to the storage afterwards, whole or not at all.

In: a run's folder. Out: a folder on a disk of this node in which files are written (`desk_of`), and each of them in its
place in the storage (`deliver`). Knows nothing of what is in the files.

    a bucket             written in the node's mirror, uploaded
    a network's folder   written in the node's temporary folder, copied: NFS takes the bytes when a file is closed, and
                         whoever writes there waits for the network
    a folder of a disk   written beside its place, renamed: nothing is copied
"""

import errno
import hashlib
import os
import shutil
from pathlib import Path

from data.retries import patiently
from data.storage import is_remote, mirrors, publish, shown

# Kinds of file systems behind a network, as /proc/mounts names them; those in user space (fuse.*) count too.
NETWORKS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "afs", "pvfs2",
    "virtiofs", "wekafs",
}  # fmt: skip
COPY_BYTES = 1 << 24


def desk_of(run: Path, name: str) -> Path:
    """The folder where `name` (a rank, say) writes what will lie in `run`. Nobody else's; it need not exist."""
    if not is_remote(run) and lies_behind_a_network(run):
        return mirrors() / "desks" / hashlib.sha256(str(run).encode()).hexdigest()[:16] / name
    return run / ".saving" / name


def lies_behind_a_network(path: Path, table: Path = Path("/proc/mounts")) -> bool:
    """Whether a path's file system is one of a network, as far as the machine says; False where it does not say."""
    if not table.exists():
        return False
    kinds: dict[str, str] = {}
    for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, kind, *_ = line.split()
        kinds[point.replace("\\040", " ")] = kind  # a later mount hides an earlier one
    real = path.resolve()
    kind = next((kinds[str(folder)] for folder in (real, *real.parents) if str(folder) in kinds), "")
    return kind in NETWORKS or kind.startswith("fuse.")


def deliver(file: Path, target: Path) -> None:
    """Move a file of this node to its place in the storage. A reader finds the old file or the whole new one, also
    after a power cut. Raises OSError."""
    if is_remote(target):
        publish(file, at=target)
        file.unlink(missing_ok=True)
        return
    patiently(shown(target), lambda: _place(file, target))
    file.unlink(missing_ok=True)


def _place(file: Path, target: Path) -> None:
    """Rename, on one file system, or copy under another name first. May be tried again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() and target.exists():
        return  # renamed by the try before, whose fsync of the folder failed
    _to_disk(file)
    try:
        file.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = target.with_name(target.name + ".part")
        with file.open("rb") as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, COPY_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        part.replace(target)
    _to_disk(target.parent)


def _to_disk(path: Path) -> None:
    """Have the disk hold what was written; of a folder, its names."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system whose folders cannot be asked for it
            raise
    finally:
        os.close(number)
