"""Training over regions: what the edges between clients and cloud count and estimate."""
