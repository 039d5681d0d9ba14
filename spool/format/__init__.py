"""Write and read the bytes of a commit file: header, tables and bodies."""
