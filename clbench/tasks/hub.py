"""Datasets on the Hugging Face hub, or in a local copy of the hub's repository."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clbench.core.errors import DataError, describe_missing, display_path, join_names, named
from clbench.core.files import user_path

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
"""Suffixes of the files to read from a local copy."""


@dataclass(frozen=True)
class HubDataset:
    """Some splits of a dataset on the hub.

    Attributes
    ----------
    where
        Begins the messages, such as ``task 'glue/sst2'``.
    hub, config, revision
        ``owner/name``, the name of a configuration, and a commit or tag.
    splits
        Names of the splits to read.
    field
        Key of the list of rows in JSON files that hold more than rows.
    folders
        Folders of a local copy to read if it has none of the configuration's name.
    """

    where: str
    hub: str
    config: str | None
    revision: str | None
    splits: tuple[str, ...]
    field: str | None = None
    folders: tuple[str, ...] = ("data",)

    def files(self, data: Path | None) -> dict[str, list[Path]]:
        """Return the files of the splits in the local copy; empty if there is none."""
        root, config = copy_of(data, self.hub), self.config
        if root is None:
            return {}
        folder, files = root, {}
        if config:
            names = (name for name in (config, *self.folders) if (root / name).is_dir())
            folder = root / next(names, "")
        for split in self.splits:
            pattern = f"{'' if config else '**/'}{split}[-.]*"
            files[split] = sorted(p for p in folder.glob(pattern) if p.suffix in SUFFIXES)
            if len({path.parent for path in files[split]}) != 1:
                problem = "is in several folders" if files[split] else "has no files"
                inside = sorted(path.name for path in root.iterdir() if path.is_dir())
                present = sorted(path.name for path in folder.iterdir() if path.is_file())
                raise DataError(
                    f"{self.where}: split {split!r} {problem} in {folder} (files: "
                    f"{join_names(present)}; config = {config!r}; folders in {root}: "
                    f"{join_names(inside)}). Use the layout of {self.hub}, with "
                    f"files {split}-*.parquet, or set `splits` to the names of its splits or "
                    "`config` to one of its folders."
                )
        return files

    def load(self, data: Path | None) -> tuple[Any, str]:
        """Return the dataset and its origin for messages; raise a DataError on any failure."""
        import datasets

        root = copy_of(data, self.hub)
        options: dict[str, Any] = {"name": self.config, "revision": self.revision}
        if root is not None:
            # Name the files instead of following the card of the repository: a copy may hold
            # only some of its configurations and rows.
            files = {
                split: [str(path.relative_to(root)) for path in paths]
                for split, paths in self.files(data).items()
            }
            options = {"data_files": files, "verification_mode": "no_checks"}
            if self.field is not None:
                options["field"] = self.field
        visible = datasets.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            if root is None:
                return datasets.load_dataset(self.hub, **options), f"{self.hub} on the hub"
            return datasets.load_dataset(str(root.resolve()), **options), str(root)
        # The library and its dependencies raise a dozen unrelated types of errors here.
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            folder = self.hub.rpartition("/")[2]
            missing = "" if data is None else f"{display_path(data / folder)} does not exist, and "
            problem = (
                f"{missing}{self.hub} could not be downloaded ({reason}). Check the network, or "
                f"give a copy with {named('data', 'DIR')}, as DIR/{folder}."
                if root is None
                else f"{root} cannot be read ({reason}). Copy the files of {self.hub} again."
            )
            raise DataError(f"{self.where}: {problem}") from error
        finally:
            if visible:
                datasets.enable_progress_bars()


def copy_of(data: Path | None, name: str) -> Path | None:
    """Return the folder of a local copy of a hub dataset, or None if there is none."""
    folder = None if data is None else data / name.rpartition("/")[2]
    return folder if folder is not None and folder.is_dir() else None


def data_folder(data: str | Path | None) -> Path | None:
    """Return the absolute path of `data` or None; raise a DataError if it is not a folder."""
    if data is None:
        return None
    folder = user_path(data, named("data"))
    if not folder.is_dir():
        problem = "is a file" if folder.is_file() else describe_missing(folder, "folder")
        raise DataError(
            f"{named('data')} {data}: {problem}. Give a folder DIR with copies of hub "
            "repositories, such as DIR/glue."
        )
    return folder.resolve()
