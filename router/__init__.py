"""The front door: OpenAI HTTP in, workers over gRPC out. No tensors, no models."""
