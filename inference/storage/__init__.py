"""Object storage: one protocol, local disks and buckets behind it, and the credentials they need."""
