"""Copies a source of the data path with faults planted in it, which Planted (planted.h) turns on.

    plant.py SOURCE > COPY

The shipped code has no switch for them. A source that no longer has the text which a fault replaces
is an error: plant the fault anew.
"""

import pathlib
import sys

# By file name: (the fault, what it replaces, what by).
PLANTS = {
    "unit_executor.cc": [
        # Hands out a unit before every rank has written its slice of it.
        (
            "gather_wait",
            "TimedWait(state.gathered, ",
            "Planted({}) ? absl::StatusOr<double>(0.0) : TimedWait(state.gathered, ",
        ),
    ],
    "shm_collectives.cc": [
        # Writes a slot's next tenant while peers may still read the last one.
        (
            "slot_release",
            "if (!owner_->AllReached(op_.slot, /*left=*/true, ",
            "if (!Planted({}) && !owner_->AllReached(op_.slot, /*left=*/true, ",
        ),
        # Reads its peers' gradients before they are complete.
        (
            "gradient_complete",
            "if (!owner_->AllReached(slot_, /*left=*/false, ",
            "if (!Planted({}) && !owner_->AllReached(slot_, /*left=*/false, ",
        ),
        # Writes into its gradient buffer while peers may still read the last unit's.
        (
            "gradient_release",
            "return owner_->AllReached(slot_, /*left=*/true, ",
            "return Planted({}) || owner_->AllReached(slot_, /*left=*/true, ",
        ),
    ],
}


def main(source):
    text = source.read_text(encoding="utf-8")
    for fault, old, new in PLANTS[source.name]:
        if text.count(old) != 1:
            return f"{source} has {text.count(old)} times the text that {fault} replaces: {old!r}"
        text = text.replace(old, new.format(f'"{fault}"'))
    sys.stdout.write(f'#include "tests/sanitizers/planted.h"\n#line 1 "{source}"\n{text}')
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
