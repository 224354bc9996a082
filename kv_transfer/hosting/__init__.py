"""What every kind of worker has around its engine: the thread that owns it, a port, peers, and a life as a process."""
