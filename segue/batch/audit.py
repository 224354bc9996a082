"""Whether what requests own is exactly what the pools hold: the audit of holdings, for tests and broken workers."""

from collections.abc import Collection, Iterable, Mapping

from segue.batch.request import Request
from segue.batch.reuse import Reuse
from segue.cache.check import check_tree
from segue.ids import Slot
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName


def own_pages(pool: Pool, pages: Iterable[int]) -> list[int]:
    """Pages that are not the tree's."""
    return [page for page in pages if pool.owner(page) is not Owner.CACHED]


def check_holdings(
    pools: Mapping[ComponentName, Pool], requests: Iterable[Request], coming: Collection[Slot], reuse: Reuse | None
) -> None:
    """Asserts that the pools are whole and that exactly the units in `requests`' tables are held, each once.

    `coming` are slots that a planned step fills and that belong to nobody else yet.
    """
    owned: dict[ComponentName, list[int]] = {name: [] for name in pools}
    if coming:
        owned[ComponentName.RECURRENT] += coming
    for request in requests:
        if request.tables is None:
            continue
        if (full := pools.get(ComponentName.FULL)) is not None:
            owned[ComponentName.FULL] += own_pages(full, request.tables.full)
        if (window := pools.get(ComponentName.WINDOW)) is not None:
            assert not any(request.tables.window[: request.tables.window_first])
            mine = own_pages(window, request.tables.live_window_pages())
            used = len(request.lease.used) if request.lease is not None else 0
            assert len(request.tables.live_window_pages()) == len(mine) + used
            owned[ComponentName.WINDOW] += mine
            if reuse is not None:
                reuse.check_retained(request, request.tables.swept[0])
        if request.tables.slot is not None:
            owned[ComponentName.RECURRENT].append(request.tables.slot)
    if reuse is not None:
        check_tree(reuse.tree, pools)
    for name, pool in pools.items():
        pool.check()
        units = owned[name]
        assert len(units) == len(set(units)), f"two requests own the same unit of {name}"
        assert all(pool.holds(unit) for unit in units), f"a request owns a unit of {name} that is not held"
        assert len(units) == pool.counts().held, (
            f"pool {name} holds {pool.counts().held} units, requests own {len(units)}"
        )
