"""Snapshots of live requests at the front door: taken, looked at, resumed; the workers keep them."""
