"""Power loss while checkpoints are written: what is named a checkpoint on the disk is whole, and none that was there is lost.

A run's writes, renames and fsyncs are recorded. The disk after a loss of power has what was synchronized, and of all that
came later any part: writes of a file, and changes of each folder.
"""

import dataclasses
import os
import pathlib
import random
import shutil
import subprocess

import pytest
from conftest import FIXTURES, outcome, succeed, tool

STEPS = 6


@dataclasses.dataclass
class File:
    content: bytes = b""  # on the disk
    pending: list = dataclasses.field(default_factory=list)  # writes since, one after the other

    def sync(self):
        self.content += b"".join(self.pending)
        self.pending = []

    def after_loss(self, dice):
        content = bytearray(self.content)
        place = len(content)
        for data in self.pending:
            # A write is lost, whole or in part; what comes after it may be there, behind zeros.
            if dice.random() < 0.6:
                kept = data if dice.random() < 0.5 else data[:dice.randrange(len(data) + 1)]
                content.extend(bytes(place - len(content)) if len(content) < place else b"")
                content[place:place + len(kept)] = kept
            place += len(data)
        return bytes(content)


@dataclasses.dataclass
class Folder:
    entries: dict = dataclasses.field(default_factory=dict)  # as the program sees it
    synced: dict = dataclasses.field(default_factory=dict)
    pending: list = dataclasses.field(default_factory=list)  # changes since: what is there under each of some names, or None

    def change(self, **names):
        apply(self.entries, names)
        self.pending.append(names)

    def sync(self):
        self.synced, self.pending = dict(self.entries), []

    def after_loss(self, dice):
        """Any part of the changes: a file system need not keep their order."""
        entries, keeps = dict(self.synced), dice.choice([0, 0.2, 0.5, 0.8, 1])
        changes = [change for change in self.pending if dice.random() < keeps]
        if dice.random() < 0.3:
            dice.shuffle(changes)
        for change in changes:
            apply(entries, change)
        return entries


def apply(entries: dict, names: dict) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Disk:
    def __init__(self, root: pathlib.Path):
        self.root, self.top, self.files = root, Folder(), {}
        self.synced_steps = []  # how many events were before it, its name

    def parent(self, path: str):
        folder = self.top
        *above, name = pathlib.Path(path).relative_to(self.root).parts
        for part in above:
            folder = folder.entries[part]
        return folder, name

    def find(self, path: str):
        if path == str(self.root):
            return self.top
        if path.startswith("/proc/self/fd/"):
            return self.files[int(path.rsplit("/", 1)[1])]
        folder, name = self.parent(path)
        return folder.entries.get(name)

    def play(self, call, number, first, second):
        if call == "temporary":
            self.files[number] = File()
        elif call in ("open", "truncate"):
            node = self.find(first)
            if node is None:
                folder, name = self.parent(first)
                folder.change(**{name: (node := File())})
            assert call == "open", "what is there is not written over"
            self.files[number] = node
        elif call == "close":
            self.files.pop(number, None)
        elif call == "write":
            self.files[number].pending.append(first)
        elif call == "fsync":
            self.files[number].sync()
        elif call == "mkdir":
            folder, name = self.parent(first)
            folder.change(**{name: Folder()})
        elif call == "link":
            folder, name = self.parent(second)
            folder.change(**{name: self.find(first)})
        elif call == "rename":
            (folder, old), (target, new) = self.parent(first), self.parent(second)
            assert folder is target, "one change, which is there or not"
            folder.change(**{new: folder.entries[old], old: None})
        elif call == "unlink":
            folder, name = self.parent(first)
            folder.change(**{name: None})
        else:
            raise AssertionError(call)

    def write_after_loss(self, dice, to: pathlib.Path):
        def write(node, path):
            if isinstance(node, File):
                path.write_bytes(node.after_loss(dice))
                return
            path.mkdir()
            for name, below in node.after_loss(dice).items():
                write(below, path / name)

        write(self.top, to)


def read_record(path: pathlib.Path):
    content, place = path.read_bytes(), 0
    while place != len(content):
        end = content.index(b"\n", place)
        call, number, first, second = content[place:end].decode().split()
        texts = []
        place = end + 1
        for length in (int(first), int(second)):
            texts.append(content[place:place + length])
            place += length
        yield call, int(number), texts[0] if call == "write" else os.fsdecode(texts[0]), os.fsdecode(texts[1])


@pytest.fixture(scope="session")
def recorder(once):
    source = pathlib.Path(__file__).parent / "Inputs" / "recorded_files.c"
    return once("librecorded_files.so", lambda path: subprocess.run(["gcc", "-O1", "-shared", "-fPIC", source, "-o", path], check=True))


def checkpoints(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*") if path.name[5:].isdigit())


@pytest.mark.parametrize("planned", ["--ranks 2", "--ranks 4 --strategy hybrid_shard --mesh 2x2"])
def test_a_checkpoint_that_is_named_whole_is_whole(planned, plans, references, recorder, pytestconfig, tmp_path):
    ranks = int(planned.split()[1])
    command = [plans("gpt2", ranks, *planned.split()[2:]), "--data", references("gpt2", ranks), "--json", "--weights", FIXTURES / "gpt2.pt2", "--steps", STEPS]
    expected = outcome(succeed("fsdp-run", *command).stdout)
    disk = tmp_path / "disk"
    disk.mkdir()
    succeed("fsdp-run", *command, "--checkpoint", disk / "runs" / "first", "--every", 1, "--keep", 2,
            LD_PRELOAD=str(recorder), FSDP_RECORD_FOLDER=str(disk), FSDP_RECORD=str(tmp_path / "record"))
    events = list(read_record(tmp_path / "record"))
    renames = [i for i, event in enumerate(events) if event[0] == "rename"]
    assert len(renames) >= STEPS
    dice = random.Random(11)
    cuts = 400 if pytestconfig.getoption("--all-mutants") else 60
    # Half of them soon after a folder got its name: there the order matters most.
    places = [dice.choice(renames) + dice.randrange(4) for _ in range(cuts // 2)] + [dice.randrange(len(events) + 1) for _ in range(cuts // 2)]
    tried = 0
    for place in sorted(places):
        after = Disk(disk)
        promised = 0  # the newest that was removing others, which begins when it is on the disk
        for event in events[:place]:
            after.play(*event)
            if event[0] == "rename" and "/.step-" in event[3]:
                promised = max(promised, newest)
            elif event[0] == "rename":
                newest = int(event[3].rsplit("-", 1)[1])
        lost = tmp_path / f"after-{tried}"
        after.write_after_loss(dice, lost)
        run = lost / "runs" / "first"
        found = checkpoints(run)
        for name in found:
            succeed("fsdp-ckpt", "verify", run / name)
        assert not promised or (found and int(found[-1].removeprefix("step-")) >= promised), (place, found, promised)
        if tried % 10 == 0:
            went_on = tool("fsdp-run", *command, "--checkpoint", run, "--resume", "auto")
            assert went_on.returncode == 0 and outcome(went_on.stdout)[1] == expected[1] and "before it" not in went_on.stderr, went_on.stderr
        tried += 1
        shutil.rmtree(lost)
    assert tried == len(places)
