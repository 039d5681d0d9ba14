"""Eight real processes on a real disk, killed at random and in named windows; a checker reads their logs."""
