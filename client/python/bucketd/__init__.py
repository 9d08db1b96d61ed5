"""bucketd: bucketing and ordering plans for the collectives of sharded PyTorch training steps."""

__version__ = "0.1.0"
