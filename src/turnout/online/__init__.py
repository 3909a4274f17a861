"""Online learning: clients announce a model before they see the data it is judged by."""
