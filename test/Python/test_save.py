"""save() writes where it is told to, and destroys nothing there."""

import os
import stat
import threading

import fsdp_mlir
import pytest
import torch


@pytest.fixture(scope="module")
def program():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x).sum()

    return fsdp_mlir.capture(Loss(), (torch.ones(1, 2),))


def test_links_are_followed(program, tmp_path):
    target = tmp_path / "target.pt2"
    target.write_text("old")
    target.chmod(0o640)
    (tmp_path / "link.pt2").symlink_to(target)
    (tmp_path / "dangling.pt2").symlink_to("fresh.pt2")
    fsdp_mlir.save(program, tmp_path / "link.pt2")
    fsdp_mlir.save(program, tmp_path / "dangling.pt2")
    assert (tmp_path / "link.pt2").is_symlink() and (tmp_path / "dangling.pt2").is_symlink()
    assert target.read_bytes()[:2] == (tmp_path / "fresh.pt2").read_bytes()[:2] == b"PK"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 4


def test_a_pipe_is_written_to(program, tmp_path):
    pipe = tmp_path / "pipe.pt2"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    fsdp_mlir.save(program, pipe)
    reader.join()
    assert read[0][:2] == b"PK" and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_stays_a_folder(program, tmp_path):
    (tmp_path / "model.pt2").mkdir()
    with pytest.raises(IsADirectoryError):
        fsdp_mlir.save(program, tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == [tmp_path / "model.pt2"]
