"""The engine that both services share; imports neither a service nor Ray."""
