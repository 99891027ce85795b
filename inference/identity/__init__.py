"""What really scores a shard, by content: the job folder, the model, the installed packages that count."""
