"""Products with constant matrices: plain, packed, and in tiles of one height."""
