"""Learning although some clients are silenced, or lie: robust means, and whom an adversary would silence."""
