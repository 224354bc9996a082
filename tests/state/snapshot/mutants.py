"""One-line mistakes in the life of a snapshot on disk (`python -m tests.mutants state.snapshot`)."""

from tests.mutants import Mutant

_HERE = "segue/state/snapshot/"
_ROUND_TRIP = ("tests/state/snapshot/test_round_trip.py",)
_REFUSALS = ("tests/state/snapshot/test_refusals.py",)
_CLAIMS = ("tests/state/snapshot/test_claims.py",)
_SPENT = ("tests/state/snapshot/test_spent.py",)
_LIMITS = ("tests/state/snapshot/test_limits.py",)
_KILLED = ("tests/state/snapshot/test_killed.py",)
_UNREADABLE = ("tests/state/snapshot/test_unreadable.py",)
_FULL = ("tests/state/snapshot/test_full_disk.py",)

MUTANTS = (
    Mutant(
        "the marker has its name before the manifest is there",
        _HERE + "writer.py",
        "            write_durable(self._folder / MANIFEST, raw)\n",
        "            write_durable(self._folder / MARKER_COMING, seal(marker_of(manifest, raw), self._ground.key))\n"
        "            self._show()\n"
        "            write_durable(self._folder / MANIFEST, raw)\n",
        _KILLED,
    ),
    Mutant(
        "a writer is swept while it writes",
        _HERE + "census.py",
        "return not try_lock(descriptor)",
        "return False",
        _KILLED,
    ),
    Mutant(
        "what a dead writer left is never swept",
        _HERE + "census.py",
        "return not try_lock(descriptor)",
        "return True",
        _KILLED,
    ),
    Mutant(
        "a snapshot is removed before it is invisible",
        _HERE + "claim.py",
        "                withdraw(folder)\n        remove_folder(folder)\n",
        "                for path in sorted(folder.iterdir(), reverse=True):\n                    path.unlink()\n",
        _KILLED,
    ),
    Mutant(
        "two may have one claim",
        _HERE + "claim.py",
        "        ground.require_unclaimed(snapshot_id, claimant)\n",
        "",
        _CLAIMS,
    ),
    Mutant(
        "whoever names no claimant has everybody's claim",
        _HERE + "ground.py",
        "(claimant is None or claim.claimant != claimant)",
        "claim.claimant != claimant",
        _CLAIMS,
    ),
    Mutant(
        "what is used up leaves no note",
        _HERE + "claim.py",
        "if self._record.claimant is not None:",
        "if False:",
        _SPENT,
    ),
    Mutant(
        "what is forbidden is committed",
        _HERE + "writer.py",
        "if spent_for(self._ground, self.snapshot_id):",
        "if False:",
        _SPENT,
    ),
    Mutant(
        "what is complete is forbidden",
        _HERE + "spent.py",
        "    if is_committed(ground.root / snapshot_id):\n        return False\n",
        "",
        _SPENT,
    ),
    Mutant(
        "the lock keeps nobody out",
        _HERE + "locks.py",
        "            while not try_lock(descriptor):",
        "            while False:",
        _CLAIMS,
    ),
    Mutant(
        "an owner that was taken over goes on",
        _HERE + "claim.py",
        "current.token != self._record.token:",
        "current.token is None:",
        _CLAIMS,
    ),
    Mutant(
        "a claim never runs out",
        _HERE + "ground.py",
        "if found is not None and found.until_s > self.clock() else None",
        "if found is not None else None",
        _CLAIMS,
    ),
    Mutant(
        "a claimed snapshot expires",
        _HERE + "census.py",
        "return age_s > ground.config.expire_s and ground.possible_claim(snapshot_id) is None",
        "return age_s > ground.config.expire_s",
        _LIMITS,
    ),
    Mutant(
        "what is to come counts as free",
        _HERE + "census.py",
        "max(0, _announced(folder) - there)",
        "0",
        _LIMITS,
    ),
    Mutant(
        "the rank is not in the digest",
        _HERE + "payload.py",
        "to_json([rank, name,",
        "to_json([0, name,",
        _REFUSALS,
    ),
    Mutant(
        "the header is not compared",
        _HERE + "payload_file.py",
        "if found != header:",
        "if not found:",
        _REFUSALS,
    ),
    Mutant(
        "a digest is not compared",
        _HERE + "payload_file.py",
        "digests) != record.digest:",
        "digests) == '':",
        _REFUSALS,
    ),
    Mutant(
        "the marker vouches for any manifest",
        _HERE + "committed.py",
        "    require_vouched(marker, raw, where)\n",
        "",
        _REFUSALS,
    ),
    Mutant(
        "an unsigned snapshot is ours",
        _HERE + "marker.py",
        "if key is not None and not hmac",
        "if key is not None and signature != _UNSIGNED and not hmac",
        _REFUSALS,
    ),
    Mutant(
        "tensors lie unaligned",
        _HERE + "payload.py",
        "-ITEM_BYTES[tensor.dtype]",
        "0",
        _ROUND_TRIP,
    ),
    Mutant(
        "a failed writer leaves its files",
        _HERE + "writer.py",
        "        if not self._committed:\n            remove_folder(self._folder)\n",
        "",
        _FULL,
    ),
    Mutant(
        "a claim needs room",
        _HERE + "writer.py",
        "            write_durable(self._folder / CLAIM, UNCLAIMED)\n",
        "            write_durable(self._folder / CLAIM, b'')\n",
        _FULL,
    ),
    Mutant(
        "a claim that cannot be read hides all snapshots",
        _HERE + "folder.py",
        "            claim = ground.standing_claim(snapshot_id)\n        except OSError:\n",
        "            claim = ground.standing_claim(snapshot_id)\n        except KeyError:\n",
        _UNREADABLE,
    ),
    Mutant(
        "one that cannot be read keeps all from being swept",
        _HERE + "census.py",
        "        with suppress(OSError):\n",
        "        with suppress(KeyError):\n",
        _UNREADABLE,
    ),
    Mutant(
        "a claim that cannot be read is nobody's",
        _HERE + "ground.py",
        "            return found if found.until_s > self.clock() else None\n",
        "            return None\n",
        _UNREADABLE,
    ),
)
