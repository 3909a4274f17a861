"""What is proved of the methods: constants, bounds and conditions, as functions."""
