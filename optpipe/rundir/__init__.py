"""Where things are kept: digests, locks, atomic writes, numbered run folders, "already done?"."""

from optpipe.rundir.code import PLACE, CodeStore, KeptFolder
from optpipe.rundir.digests import CHUNK, DigestMemo, digest_bytes, digest_file, digest_json
from optpipe.rundir.files import (
    folder_bytes,
    locked,
    read_json,
    read_yaml,
    readable,
    remove_tree,
    sync_folder,
    sync_tree,
    tree_files,
    write_atomic,
    write_json,
)
from optpipe.rundir.jobs import JobStore
from optpipe.rundir.places import LICENCES, LOCKS, RunFolder, optpipe_home, shown

__all__ = [
    "CHUNK",
    "LICENCES",
    "LOCKS",
    "PLACE",
    "CodeStore",
    "DigestMemo",
    "JobStore",
    "KeptFolder",
    "RunFolder",
    "digest_bytes",
    "digest_file",
    "digest_json",
    "folder_bytes",
    "locked",
    "optpipe_home",
    "read_json",
    "read_yaml",
    "readable",
    "remove_tree",
    "shown",
    "sync_folder",
    "sync_tree",
    "tree_files",
    "write_atomic",
    "write_json",
]
