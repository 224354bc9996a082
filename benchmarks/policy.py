"""What policy costs the engine thread: match, publish, evict, a decode step; on one thread, without tensors."""

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence

from benchmarks.decode_step import decode_step
from benchmarks.quantiles import milliseconds
from benchmarks.refusal import Refused
from segue.cache.check import check_tree
from segue.cache.keys import PageKeys
from segue.cache.shape import CacheShape
from segue.cache.tree import PrefixTree
from segue.ids import Page, Slot
from segue.state.pool import Pool
from segue.state.spec import ComponentName
from segue.state.tables import StateTables
from segue.tokens import token_array

NAME = "policy"
SUMMARY = "times of prefix tree and scheduler: match, publishing pages, evicting leaves, a decode step's share"

PAGE_TOKENS = 64
VOCABULARY = 151_936
SHAPE = CacheShape(page_tokens=PAGE_TOKENS, full=True, window=511, recurrent=True, grid=PAGE_TOKENS, interval=256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", type=int, default=131_072, help="tokens of the cached prompt; whole pages count")
    parser.add_argument("--nodes", type=int, default=2_048, help="pages published, and leaves evicted, at once")
    parser.add_argument("--running", type=int, default=256, help="requests that decode in the measured steps")
    parser.add_argument("--steps", type=int, default=300, help="decode steps; the median counts")
    parser.add_argument("--rounds", type=int, default=50, help="how often each is measured; the median counts")


def run(args: argparse.Namespace) -> dict[str, object]:
    draw = random.Random(0)
    return {
        **_match(draw, args.prompt, args.rounds),
        "publish_ms": _publish(draw, args.nodes, args.rounds),
        "evict_ms": _evict(draw, args.nodes, args.rounds),
        **decode_step(SHAPE, running=args.running, steps=args.steps, vocabulary=VOCABULARY),
    }


class _Cache:
    """A tree over all three components, and the pools it cuts from."""

    def __init__(self, pages: int) -> None:
        self.pools = {name: Pool(name, pages + 1) for name in ComponentName}
        self.tree = PrefixTree(SHAPE, self.pools, lambda slot: None)

    def tables(self, pages: int) -> StateTables:
        """Page tables of a request that has computed `pages` pages; its window is all there."""
        full, window = (self.pools[name].alloc(pages) for name in (ComponentName.FULL, ComponentName.WINDOW))
        return StateTables([Page(page) for page in full], [Page(page) for page in window])

    def checkpoint(self, tokens: Sequence[int], pages: int) -> None:
        """A request that computed these tokens, left a checkpoint after `pages` pages, and ended."""
        whole = len(tokens) // PAGE_TOKENS
        lease, tables, keys = self.tree.acquire(self.tree.match("", [], 1)), self.tables(whole), _keys(tokens)
        slot = Slot(self.pools[ComponentName.RECURRENT].alloc(1)[0])
        _require(self.tree.publish(lease, keys, tables, whole, 0), "nothing was published")
        _require(self.tree.publish_checkpoint(lease, keys, tables, pages, slot, 0), "no checkpoint was taken")
        window = [page for index, page in enumerate(tables.window) if page is not None and index not in lease.used]
        self.tree.release(lease)
        self.pools[ComponentName.WINDOW].free(window)

    def check(self) -> None:
        check_tree(self.tree, self.pools)
        for pool in self.pools.values():
            pool.check()


def _match(draw: random.Random, prompt: int, rounds: int) -> dict[str, object]:
    whole = prompt // PAGE_TOKENS
    tokens = token_array(draw.choices(range(VOCABULARY), k=whole * PAGE_TOKENS))
    cache = _Cache(whole)
    cache.checkpoint(tokens, whole - 1)
    cache.check()
    keys = _keys(tokens)

    def matched(given: Sequence[bytes]) -> None:
        match = cache.tree.match("", given, len(tokens))
        _require(len(match.path) == whole, "the prompt is cached, but not all of it matched")
        _require(match.resumable_pages == whole - 1, "a match ends at the deepest checkpoint")

    return {
        "match_ms": _median_ms(rounds, lambda: matched(keys)),
        "match_with_keys_ms": _median_ms(rounds, lambda: matched(_keys(tokens))),
    }


def _publish(draw: random.Random, nodes: int, rounds: int) -> float:
    """Every round publishes other tokens, beside those of all rounds before."""
    cache, times = _Cache(nodes * rounds), []
    for number in range(1, rounds + 1):
        keys = _keys(draw.choices(range(VOCABULARY), k=nodes * PAGE_TOKENS))
        lease, tables = cache.tree.acquire(cache.tree.match("", keys, 1)), cache.tables(nodes)
        gc.collect()
        started_s = time.perf_counter()
        published = cache.tree.publish(lease, keys, tables, nodes, 0)
        times.append(time.perf_counter() - started_s)
        _require(published, "nothing was published")
        _require(cache.pools[ComponentName.FULL].counts().cached == number * nodes, "not all pages are the tree's")
    cache.pools[ComponentName.WINDOW].check()
    return milliseconds(times, 0.5)


def _evict(draw: random.Random, nodes: int, rounds: int) -> float:
    """Half of the leaves stay: there is something to choose from."""
    times = []
    for _ in range(rounds):
        cache = _Cache(2 * nodes)
        for _ in range(2 * nodes):
            keys = _keys(draw.choices(range(VOCABULARY), k=PAGE_TOKENS))
            lease, tables = cache.tree.acquire(cache.tree.match("", keys, 1)), StateTables()
            tables.full = [Page(cache.pools[ComponentName.FULL].alloc(1)[0])]
            _require(cache.tree.publish(lease, keys, tables, 1, 0), "nothing was published")
            cache.tree.release(lease)
        gc.collect()
        started_s = time.perf_counter()
        freed = cache.tree.forest.evict(ComponentName.FULL, nodes)
        times.append(time.perf_counter() - started_s)
        _require(freed == nodes, f"{freed} of {nodes} leaves were evicted")
    cache.check()
    return milliseconds(times, 0.5)


def _keys(tokens: Sequence[int]) -> list[bytes]:
    known = token_array(tokens)
    return PageKeys(PAGE_TOKENS, lambda start, stop: known[start:stop].tobytes()).first(len(tokens) // PAGE_TOKENS)


def _median_ms(rounds: int, measured: Callable[[], None]) -> float:
    times = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        measured()
        times.append(time.perf_counter() - started_s)
    return milliseconds(times, 0.5)


def _require(held: bool, what: str) -> None:
    if not held:
        raise Refused(what)
