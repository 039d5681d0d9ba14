"""Which tests notice a change of a file? ``scripts/test --for`` asks; ``scripts/test --record-calls`` finds out."""
