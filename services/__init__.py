"""Local servers for tests and for trying things out: Pub/Sub in memory, and a Kafka broker.

`python -m services` starts both.
"""
