"""Pages and slots of known models, as declarations without weights."""

from dataclasses import dataclass

from segue.state.spec import ComponentName, DType, ModelState, StateTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """Layers of each kind, and what one of them keeps in bfloat16; matrix states are in float32, as served.

    `delta` is a recurrent layer's: key heads, value heads, dims of a key and of a value.
    """

    full: int
    sliding: int = 0
    recurrent: int = 0
    kv_heads: int
    head_dim: int
    window: int = 0
    delta: tuple[int, int, int, int] = (1, 1, 1, 1)

    def state(self) -> ModelState:
        """The declaration that a model of this shape makes."""
        tensors = []
        kinds = (
            [ComponentName.FULL] * self.full
            + [ComponentName.WINDOW] * self.sliding
            + [ComponentName.RECURRENT] * self.recurrent
        )
        for layer, component in enumerate(kinds):
            if component is ComponentName.RECURRENT:
                keys, values, key_dim, value_dim = self.delta
                matrix, columns = (values // keys, key_dim, value_dim), (2 * key_dim + values // keys * value_dim, 3)
                tensors.append(StateTensor(layer, "matrix", component, keys, matrix, DType.FLOAT32))
                tensors.append(StateTensor(layer, "conv", component, keys, columns, DType.BFLOAT16))
                continue
            reach = self.window if component is ComponentName.WINDOW else None
            for name in ("k", "v"):
                vector = (self.head_dim,)
                tensors.append(StateTensor(layer, name, component, self.kv_heads, vector, DType.BFLOAT16, reach))
        return ModelState.of(tensors)


STATE_SHAPES = {
    # The bundled model.
    "small_hybrid": StateShape(
        full=2, sliding=4, recurrent=4, kv_heads=2, head_dim=64, window=127, delta=(4, 8, 64, 64)
    ),
    # Qwen3.5-35B-A3B.
    "large_hybrid": StateShape(full=10, recurrent=30, kv_heads=2, head_dim=256, delta=(16, 32, 128, 128)),
    # gpt-oss-20b.
    "sliding": StateShape(full=12, sliding=12, kv_heads=8, head_dim=64, window=127),
}
