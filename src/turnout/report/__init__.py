"""From the folders of runs to tables, charts and one HTML page: pure functions."""
