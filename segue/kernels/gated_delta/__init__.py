"""The gated delta rule: a step, chunks of a prompt, and the reference that defines both."""
