"""Host memory for the state of requests that were taken off the device; who is taken off is decided in segue/batch."""
