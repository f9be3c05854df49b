"""Jobs on Apache Flink: safe settings, the cluster of this machine, and Flink's REST interface."""
