"""What a router must know of a request to serve the rest of it, as a JSON object in the snapshot's manifest."""

from dataclasses import dataclass

from router.choice import Sent
from router.openai.events import Endpoint, Heading
from router.openai.plan import STOP_CHARS_MAX, STOPS_MAX, TextOptions
from router.text.stop_strings import StopAutomaton
from segue.errors import SnapshotManifestInvalid
from segue.state.snapshot.fields import Fields, JsonObject, as_text, to_json

_NAME_LENGTH_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The text side of a request with one choice. `sent` is what its client has, to the character.

    Tokens do not say that: of a token's text a part may have gone out while the rest may still become a stop string.
    """

    endpoint: Endpoint
    heading: Heading
    include_usage: bool
    text: TextOptions
    sent: Sent


def about_json(about: About) -> bytes:
    heading, text = about.heading, about.text
    return to_json(
        {
            "endpoint": about.endpoint.value,
            "id": heading.id,
            "created": heading.created,
            "model": heading.model,
            "fingerprint": heading.fingerprint,
            "seed": heading.seed,
            "include_usage": about.include_usage,
            "echo": text.echo,
            "stop": [] if text.stops is None else list(text.stops.stops),
            "include_stop": text.include_stop,
            "skip_special_tokens": text.skip_special_tokens,
            "sent_characters": about.sent.characters,
            "sent_reports": about.sent.reports,
        }
    )


def about_from_json(value: JsonObject) -> About:
    """Raises SnapshotManifestInvalid naming the field."""
    fields = Fields(value, "about")
    endpoint = fields.text("endpoint", length_max=_NAME_LENGTH_MAX)
    if endpoint not in [known.value for known in Endpoint]:
        raise SnapshotManifestInvalid(f"about.endpoint is {endpoint!r:.80}, no endpoint that generates")
    about = About(
        endpoint=Endpoint(endpoint),
        heading=Heading(
            id=fields.text("id", length_max=_NAME_LENGTH_MAX),
            created=fields.integer("created"),
            model=fields.text("model", length_max=_NAME_LENGTH_MAX),
            fingerprint=fields.text("fingerprint", length_max=_NAME_LENGTH_MAX),
            seed=fields.integer("seed"),
        ),
        include_usage=fields.flag("include_usage"),
        text=TextOptions(
            echo=fields.flag("echo"),
            stops=_stops(fields),
            include_stop=fields.flag("include_stop"),
            skip_special_tokens=fields.flag("skip_special_tokens"),
        ),
        sent=Sent(fields.integer("sent_characters"), fields.integer("sent_reports")),
    )
    fields.close()
    return about


def _stops(fields: Fields) -> StopAutomaton | None:
    stops = [as_text(stop, "about.stop", length_max=STOP_CHARS_MAX) for stop in fields.array("stop")]
    if len(stops) > STOPS_MAX or not all(stops):
        raise SnapshotManifestInvalid(f"about.stop has {len(stops)} strings, or an empty one")
    return StopAutomaton(stops) if stops else None
