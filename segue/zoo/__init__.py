"""The bundled model: the problems it solves, its tokenizer, and how it was trained."""
