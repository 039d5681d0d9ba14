"""The protocol between processes as a model, and a checker that goes through every history of it: see README.md."""
