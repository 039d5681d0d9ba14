"""The commit log: sequence numbers, group commit, visibility, replay, checkpoints and quotas."""
