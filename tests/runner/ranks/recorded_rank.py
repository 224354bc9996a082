"""A rank above 0 that writes down a hash of every order before it carries it out: `... recorded_rank FOLDER PID`."""

import hashlib
import sys
from pathlib import Path

from segue.batch.step import IntArray
from segue.build import build_follower
from segue.runner.ranks.follower import Call, CarryOut, answer_call, follow
from segue.runner.ranks.orders import Order
from segue.tether import tie_to_parent


def line(order: Order, values: IntArray) -> str:
    """What an order is, in one line."""
    return f"{order.name} {hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()}\n"


def main() -> None:
    folder, parent = sys.argv[1:]
    tie_to_parent(int(parent))

    def make(about: bytes, call: Call) -> CarryOut:
        follower = build_follower(about, call)
        record = (Path(folder) / str(call.rank)).open("w", buffering=1)

        def carry_out(order: Order, values: IntArray) -> None:
            record.write(line(order, values))
            follower.carry_out(order, values)

        return carry_out

    follow(answer_call(), make)


if __name__ == "__main__":
    main()
