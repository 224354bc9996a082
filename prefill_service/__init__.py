"""The prefill worker: will compute prompts and push their whole state to decode workers; nothing lives here yet."""
