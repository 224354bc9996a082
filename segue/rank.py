"""A tensor-parallel rank above 0, as the process that rank 0 starts: `python -m segue.rank PID`, its parent's."""

import logging
import os
import signal
import sys

from segue.tether import tie_to_parent
from segue.threads import let_waiting_threads_sleep


def main() -> None:
    """Runs until rank 0 ends, which alone decides when: a terminal's Ctrl-C reaches both."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Also of one that is stopped or hangs in a sum nothing is left when rank 0 is gone.
    tie_to_parent(int(sys.argv[1]))
    let_waiting_threads_sleep()
    # Here: torch reads when it is loaded what the line above says.
    from segue.build import build_follower
    from segue.errors import ServingError
    from segue.runner.ranks.follower import answer_call, follow

    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")
    try:
        follow(answer_call(), lambda about, call: build_follower(about, call).carry_out)
    except ServingError as error:
        # Rank 0 meets the same, or that this one is gone.
        logging.getLogger("segue.ranks").error("%s", error.message)
        sys.exit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    main()
