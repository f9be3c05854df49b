"""Jobs on Flink, without a cluster."""
