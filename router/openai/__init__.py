"""The OpenAI side of the router: bodies, plans, events. No sessions, no workers."""
