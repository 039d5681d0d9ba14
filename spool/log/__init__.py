"""The commit log: numbers, the leader, commits and votes, visibility, replay, checkpoints and quotas."""
