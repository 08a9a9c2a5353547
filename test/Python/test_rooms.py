"""Rooms use each other downwards only, and the picture of it in CONTRIBUTING.md is that of the sources."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import draw_rooms  # noqa: E402


def test_rooms_use_what_stands_below_them():
    # A cycle between folders makes each of them impossible to read, build or replace alone.
    assert draw_rooms.find_faults(draw_rooms.find_uses()) == []


def test_the_picture_is_that_of_the_sources():
    text = draw_rooms.PAGE.read_text()
    assert draw_rooms.draw(draw_rooms.find_uses()) in text, "run scripts/draw_rooms.py"


def test_what_goes_upwards_is_found():
    # The test above cannot pass because nothing is ever found.
    uses = {("Archive", "Runtime/Comm"): ["lib/Archive/Box.cpp includes fsdp/Runtime/Comm/Comm.h"]}
    assert "lib/Archive/Box.cpp includes fsdp/Runtime/Comm/Comm.h: Archive stands below Runtime/Comm" in draw_rooms.find_faults(uses)
