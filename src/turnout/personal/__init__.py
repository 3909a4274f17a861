"""Models that differ from client to client: mixtures, memories, and what they are proved with."""
