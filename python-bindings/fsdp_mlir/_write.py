"""The one way in which files are written: a reader sees what was there before, or all of the new content."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path


def check(path: Path) -> None:
    """Raises OSError where no file can be made."""
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file of the same name to write to, which at the end takes the place of `path`; a link is followed, a device or a pipe
    written to. Nothing is left behind where the body raises."""
    target = path.resolve()
    is_special = target.exists() and not target.is_file()
    place = None if is_special else target.parent
    with _held(signal.SIGTERM, signal.SIGHUP), tempfile.TemporaryDirectory(prefix=".save-", dir=place) as folder:
        part = Path(folder) / path.name
        yield part
        if is_special:
            with open(part, "rb") as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink)
        else:
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)


@contextlib.contextmanager
def _held(*signals: int) -> Iterator[None]:
    """These signals wait for this thread, so that they leave no temporary folder. (KeyboardInterrupt is an exception: it cleans up.)"""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
