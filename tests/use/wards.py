"""A configuration for six hospitals with an unclean table."""

CONFIGURATION = """
[data]
name = "csv_table"
path = "wards.csv"
target = "died"
client = "hospital"
separator = ";"
decimal = ","
missing = "flag"

[partition]
name = "natural"

[clients]
count = 6

[model]
name = "mlp"
hidden = [8]

[local]
lr = 0.3

[algorithm]
name = "fedavg"

[sampler]
name = "full"

[engine]
threads = 1

[run]
name = "wards"
rounds = 4
"""
