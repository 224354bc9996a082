"""generation_config.json: what ends an output, and the sampling values the model's makers suggest."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from segue.batch.sampling import SamplingDefaults, SamplingParams
from segue.errors import CheckpointError, InvalidRequest


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What ends an output, and values for requests that do not say."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)

    @staticmethod
    def of(generation: Mapping[str, object], config: Mapping[str, object]) -> "GenerationDefaults":
        """Reads both files' objects; the eos ids of config.json count only where generation_config.json has none.

        `do_sample: false` is temperature 0, whatever the other values say. Raises CheckpointError naming a bad value.
        """
        eos = generation.get("eos_token_id")
        sampled = generation.get("do_sample", True)
        defaults = SamplingDefaults(
            temperature=_number(generation, "temperature", 1.0) if sampled else 0.0,
            top_p=_number(generation, "top_p", 1.0),
            top_k=_integer(generation, "top_k", 0),
            min_p=_number(generation, "min_p", 0.0),
            repetition_penalty=_number(generation, "repetition_penalty", 1.0),
        )
        try:
            SamplingParams(seed=0, **asdict(defaults))
        except InvalidRequest as error:
            raise CheckpointError(f"generation_config.json: {error.message}") from error
        return GenerationDefaults(_token_ids(config.get("eos_token_id") if eos is None else eos), defaults)


def _token_ids(value: object) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    ids = tuple(item for item in listed if isinstance(item, int) and not isinstance(item, bool) and item >= 0)
    if len(ids) != len(listed):
        raise CheckpointError(f"eos_token_id is {value!r}; it must be a token id or a list of them")
    return ids


def _number(generation: Mapping[str, object], name: str, default: float) -> float:
    value = generation.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{name} in generation_config.json is {value!r}; it must be a number")
    return float(value)


def _integer(generation: Mapping[str, object], name: str, default: int) -> int:
    value = float(_number(generation, name, default))
    if not value.is_integer():
        raise CheckpointError(f"{name} in generation_config.json is {value}; it must be a whole number")
    return int(value)
