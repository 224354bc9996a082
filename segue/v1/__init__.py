"""Generated from proto/segue/v1 by `make proto`; a test compares. Only segue/wire.py and the servicers touch it."""
