"""Vectors in 8 bits: float8 e4m3 codes and one fp32 scale a vector."""
