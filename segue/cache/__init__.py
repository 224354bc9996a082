"""The prefix tree over all state components: what is cached, who uses it, what goes when memory is short."""
