"""Messages as they lie in the files of a space: what a plan says of them, and how a task reads them. No Spark here."""
