"""Which transports could carry state between two workers, best first; pure, tries none of them."""

from segue.handoff import TransportName
from segue.peering import Introduction


def candidates(ours: Introduction, theirs: Introduction) -> tuple[TransportName, ...]:
    """Never empty: messages reach any worker that can be called at all.

    NIXL writes between like memories only: between a device and another process's host memory it falls back to an
    emulation that is slower than messages.
    """
    found = [TransportName.GRPC]
    if ours.nixl is not None and theirs.nixl is not None and ours.nixl.device == theirs.nixl.device:
        found.insert(0, TransportName.NIXL)
    if ours.process == theirs.process:
        found.insert(0, TransportName.LOCAL)
    return tuple(found)
