"""The bytes of a commit file: header, tables, bodies; how they are written and read."""
