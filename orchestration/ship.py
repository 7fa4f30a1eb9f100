"""What travels to a cluster: Cloze's code and the user's recipe, in one archive. Nothing else of this machine does.

In: where the rooms lie (a checkout or site-packages), perhaps a recipe file. Out: a zip for Ray's working_dir, and
what is in it; or a UserError: larger than Ray takes, or a credential inside.
An archive of our own, not a folder that Ray packs: its size is known before the upload, its bytes depend on the files
alone (Ray knows by their hash that it has them already), and no .gitignore or .rayignore takes a module out of it.
"""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data.config import UserError
from orchestration.credentials import lines_with

ROOMS = ("data", "model", "orchestration", "tuning")
SUFFIXES = (".py", ".yaml", ".yml", ".json", ".jinja")
RECIPE = "recipe.yaml"  # the name under which a job finds the recipe given with -c
# Ray's HTTP upload. Source: ray/dashboard/http_server_head.py, client_max_size (its client warns at 512 MiB only).
LIMIT_BYTES = 100 * 1024**2


@dataclass(frozen=True)
class Shipment:
    """An archive, and what its maker has to say about it."""

    archive: Path
    num_files: int
    num_bytes: int
    """Size of the archive."""
    left_out: tuple[str, ...]
    """Files of the rooms that do not travel, because of their suffix or because they are links."""

    def __str__(self) -> str:
        text = f"{self.num_files} files, {self.num_bytes / 1e6:.1f} MB: the rooms {', '.join(ROOMS)}"
        if not self.left_out:
            return text
        shown = ", ".join(self.left_out[:5]) + (", ..." if len(self.left_out) > 5 else "")
        return f"{text}; left out {len(self.left_out)} that are neither {' nor '.join(SUFFIXES)}: {shown}"


def root() -> Path:
    """The folder that this process imports the rooms from."""
    return Path(__file__).resolve().parent.parent


@contextmanager
def shipped(recipe: Path | None = None, source: Path | None = None) -> Iterator[Shipment]:
    """Pack the rooms of `source` (default: those that run here) and the recipe; the archive goes with the block.

    Raises UserError for files that hold a credential, and for an archive that Ray would not take.
    """
    source = source or root()
    files, left_out = _files_of(source)
    if recipe is not None:
        files[RECIPE] = recipe
    with tempfile.TemporaryDirectory(prefix="cloze-ship-") as folder:
        archive = Path(folder) / "cloze.zip"
        sizes = _pack(files, archive)
        size = archive.stat().st_size
        if size > LIMIT_BYTES:
            largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
            shown = ", ".join(f"{name} ({sizes[name] / 1e6:.1f} MB)" for name in largest)
            raise UserError(
                f"what would travel is {size / 1e6:.1f} MB, Ray takes {LIMIT_BYTES / 1e6:.1f} MB; the largest: "
                f"{shown}; move what is no code out of {source} to storage that all nodes read"
            )
        faults = [fault for name, path in files.items() for fault in _credentials_in(name, path)]
        if faults:
            raise UserError("\n".join(faults))
        yield Shipment(archive, len(files), size, tuple(left_out))


def _files_of(source: Path) -> tuple[dict[str, Path], list[str]]:
    """Name in the archive -> file, and the names that are left out; caches are not worth a word."""
    files: dict[str, Path] = {}
    left_out: list[str] = []
    for room in ROOMS:
        for path in sorted((source / room).rglob("*")):
            name = path.relative_to(source).as_posix()
            if "__pycache__" in path.parts or path.is_dir() and not path.is_symlink():
                continue
            if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink():
                files[name] = path
            else:
                left_out.append(name)
    return files, left_out


def _credentials_in(name: str, path: Path) -> list[str]:
    """One line for each line of a file that holds a credential."""
    shown = path if name == RECIPE else name
    return [
        f"{shown}, line {number}: holds {kind} (it is not shown), and would travel; take it out of the file"
        for number, kind in lines_with(path.read_text(encoding="utf-8", errors="replace"))
    ]


def _pack(files: dict[str, Path], archive: Path) -> dict[str, int]:
    """Write the archive; returns each file's share of it in bytes. The same files give the same bytes."""
    sizes: dict[str, int] = {}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name, path in files.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            with out.open(entry, "w", force_zip64=True) as target, path.open("rb") as content:
                while chunk := content.read(1 << 20):
                    target.write(chunk)
            sizes[name] = entry.compress_size
    return sizes
