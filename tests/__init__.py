"""The tests, a package so that helpers such as `tests.simdisk` can be imported."""
