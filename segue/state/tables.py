"""Which pages and slot one request owns, per component and independent of each other; allocates nothing itself."""

from dataclasses import dataclass, field

from segue.ids import Page, Slot


@dataclass(slots=True)
class StateTables:
    """Page tables of one request.

    `full[i]` and `window[i]` hold positions [i * P, (i + 1) * P); a window entry is None once it is out of the window,
    as all before `window_first` are. A component that the model does not have stays empty (`slot` None). What a window
    page holds of positions before `window_from` is nothing to go by: it came from another worker without them.
    """

    full: list[Page] = field(default_factory=list)
    window: list[Page | None] = field(default_factory=list)
    window_first: int = 0
    window_from: int = 0
    slot: Slot | None = None
    swept: tuple[int, int | None] = (0, None)
    """First page within the window, and the floor, for which the table was last rid of what lies outside."""
    quiet_until: int = 0
    """Computed length before which decoding leaves nothing outside, as long as the floor stays."""

    def live_window_pages(self) -> list[Page]:
        """The window pages still owned, in position order."""
        return [page for page in self.window[self.window_first :] if page is not None]
