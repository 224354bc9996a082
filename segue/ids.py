"""Identifiers that must not be mixed up; knows nothing of what they name."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""The id a client sees (`x-request-id`); chosen by the router, unique while the request lives."""
WorkerId = NewType("WorkerId", str)
"""One start of one worker process; a restarted worker has a new one."""
RouterId = NewType("RouterId", str)
"""One start of one router process; names its multiplexed stream."""
Handle = NewType("Handle", int)
"""A worker's short number for one live request choice; the wire carries it instead of strings."""
ReservationId = NewType("ReservationId", int)
"""A receiver's number for one promise of units; grows by one, so an older one is never a newer one's."""
Page = NewType("Page", int)
"""Number of a page within its component's pool; page 0 is the sink of padded rows."""
Slot = NewType("Slot", int)
"""Number of a recurrent slot; slot 0 is the sink of padded rows."""

SINK = 0
"""The unit of every pool that padding may write to and that nobody ever owns."""
