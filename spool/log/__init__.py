"""The commit log: sequence numbers, group commit, what is visible, replay, checkpoints and quotas."""
