"""What a trained model tells about the samples it was trained on, as an attacker would measure it."""
