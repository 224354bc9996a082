"""The prefix tree: examples that are sentences, random lives, and the mistakes that these must see."""
